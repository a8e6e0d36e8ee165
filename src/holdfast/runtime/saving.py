"""A stage's share of a checkpoint: copied at a step's end, written while training goes on."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.recovery.checkpoint import write_part
from holdfast.recovery.manifest import partial_directory


class Written(NamedTuple):
    """A part that is on disk."""

    directory: str
    digests: dict[str, str]
    took_s: float  # for all of it
    copy_s: float  # the first part of that: until training could go on changing the state


Done = Callable[[Written], None]


class SaveTimes:
    """Which versions are saved. Rules are only added, and those of all workers are the same."""

    def __init__(self, every: int) -> None:
        """``every`` 0: none."""
        self._rules: Sequence[Sequence[int]] = ((0, every),)

    def change(self, rules: Sequence[Sequence[int]]) -> None:
        """[first version, every]: each counts from its first version on, up to the next one's.

        May be called from any thread. An older list, which comes late, is shorter.
        """
        if len(rules) + 1 >= len(self._rules):
            self._rules = (self._rules[0], *rules)

    def is_due(self, version: int) -> bool:
        first, every = next(rule for rule in reversed(self._rules) if rule[0] <= version)
        return bool(every) and (version - first) % every == 0


class StageSaver:
    """Writes one part at a time; a new one waits for the one before, so disks can set the pace."""

    def __init__(self, run_dir: Path, stage: int, limit_s: float) -> None:
        self._run_dir = run_dir
        # Of its own: a writer that was given up may still be busy. It gets its name when sealed.
        self._name = f"stage-{stage}.{uuid.uuid4().hex[:8]}"
        self._limit_s = limit_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.newest = 0  # version that was written here, or is being written
        self.others = 0  # the same of other holders of the stage

    def has(self, version: int) -> bool:
        return max(self.newest, self.others) >= version

    def write(self, step: int, tensors: Mapping[str, Tensor], done: Done) -> None:
        """``tensors``: copies that nobody changes. ``done`` is called from the writing thread."""
        self.wait()
        self._begin(step, lambda: tensors, done)

    def _begin(self, step: int, take: Callable[[], Mapping[str, Tensor]], done: Done) -> None:
        self.newest = step

        def run() -> None:
            start_s = time.monotonic()
            try:
                tensors = take()
                copied_s = time.monotonic()
                digests = write_part(partial_directory(self._run_dir, step) / self._name, tensors)
                took_s = time.monotonic() - start_s
                done(Written(self._name, digests, took_s, copied_s - start_s))
            except BaseException as why:  # torch's own is none of Exception; the run is stopped
                self._error = HoldfastError(
                    f"the checkpoint of step {step} in {self._run_dir} cannot be written: "
                    f"{str(why).strip().splitlines()[-1]}"
                )

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def before_update(self) -> None:
        """Called before the weights change: a saver that still reads them makes it wait."""

    def check(self) -> None:
        """Raises what went wrong while writing."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Until the last part is on disk; raises what went wrong while writing it."""
        if self._thread is not None:
            self._thread.join(self._limit_s)
            if self._thread.is_alive():
                raise HoldfastError(
                    f"{self._name} of a checkpoint in {self._run_dir} is not written after "
                    f"{self._limit_s:g} s; is the disk stuck?"
                )
            self._thread = None
        self.check()
