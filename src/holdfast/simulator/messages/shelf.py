"""What a simulated run leaves on disk: parts, checkpoints, rebuilt states, logs, the journal."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from holdfast.names import checkpoint_name
from holdfast.schedule.operation import Kind, Op


@dataclass(frozen=True, slots=True)
class Crossing:
    """A boundary tensor in a log: ``stage`` has made it."""

    step: int
    attempt: int
    stage: int
    is_forward: bool
    microbatch: int


@dataclass
class LogFile:
    """Of one worker, of one history."""

    run: str
    crossings: dict[Crossing, int] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def trim(self, step: int) -> None:
        for one in [kept for kept in self.crossings if kept.step < step]:
            del self.crossings[one]


class Shelf:
    """``is_full``: nothing can be written for a while."""

    def __init__(self) -> None:
        self.is_full = False
        self._parts: dict[tuple[int, str], tuple[int, int]] = {}  # step, directory: stage, state
        self._sealed: dict[int, dict[int, int]] = {}  # step: stage -> state
        self._rebuilt: dict[str, dict[int, int]] = {}
        self.logs: dict[str, LogFile] = {}
        self.journal: list[str] = []

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint."""
        return max(self._sealed, default=None)

    # --- checkpoints ---

    def put_part(self, step: int, directory: str, stage: int, state: int) -> None:
        self._parts[step, directory] = stage, state

    def seal(self, step: int, directories: Iterable[str], keep: int) -> None:
        """KeyError: there is no such part."""
        states = dict(self._parts[step, directory] for directory in directories)
        self._sealed[step] = states
        for old in sorted(self._sealed)[:-keep]:
            del self._sealed[old]

    def put_rebuilt(self, name: str, states: dict[int, int]) -> None:
        self._rebuilt[PurePosixPath(name).name] = dict(states)

    def open_state(self, name: str) -> dict[int, int]:
        """As an ``Assign`` names it. KeyError: it is gone."""
        last = PurePosixPath(name).name
        if last in self._rebuilt:
            return self._rebuilt[last]
        return {checkpoint_name(step): states for step, states in self._sealed.items()}[last]

    def discard(self, directory: str) -> None:
        path = PurePosixPath(directory)
        self._rebuilt.pop(path.name, None)
        if path.suffix == ".partial":
            gone = path.stem
            for key in [key for key in self._parts if checkpoint_name(key[0]) == gone]:
                del self._parts[key]

    # --- logs ---

    def log(self, worker: str, run: str, step: int, attempt: int, op: Op, number: int) -> None:
        assert op.microbatch is not None
        log = self.logs.get(worker)
        if log is None or log.run != run:
            log = self.logs[worker] = LogFile(run)
        name = Crossing(step, attempt, op.stage, op.kind is Kind.F, op.microbatch)
        log.crossings[name] = number

    def find_crossing(self, run: str, name: Crossing) -> int | None:
        """In any worker's log."""
        for log in self.logs.values():
            if log.run == run and name in log.crossings:
                return log.crossings[name]
        return None

    def trim_logs(self, workers: Iterable[str], step: int) -> None:
        for worker in workers:
            if worker in self.logs:
                self.logs[worker].trim(step)

    def clear_logs(self) -> None:
        self.logs.clear()

    # --- the journal ---

    def write_down(self, record: str) -> None:
        self.journal.append(record)

    def as_plain(self) -> dict[str, Any]:
        """For people who look for a mistake."""
        return {"sealed": sorted(self._sealed), "parts": sorted(self._parts)}
