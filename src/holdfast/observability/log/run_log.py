"""The events of a run, for whoever looks at it: while it runs, and after."""

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.observability.events import (
    EVENTS_FILE,
    Event,
    StepFinished,
    WorkerStep,
    read_events,
)
from holdfast.observability.log.table import StepTable


class RunLog:
    """Made by :meth:`open`: what there was then. ``follow`` brings what comes after that."""

    def __init__(self, run_dir: Path, rare: tuple[Event, ...], steps: StepTable) -> None:
        self.run_dir = run_dir
        self.rare = rare  # all but WorkerStep and StepFinished, in order
        self.steps = steps

    @classmethod
    def open(cls, run_dir: Path, *, on_progress: Callable[[float], None] | None = None) -> "RunLog":
        """``on_progress`` hears how much of the files is read, from 0 to 1, if that takes long.

        ConfigError: there is no run, or its events cannot be read.
        """
        if not (run_dir / EVENTS_FILE).is_file():
            raise ConfigError(f"{run_dir} holds no {EVENTS_FILE}: expected the directory of a run")
        events = read_events(run_dir / EVENTS_FILE)
        rare = tuple(e for e in events if not isinstance(e, WorkerStep | StepFinished))
        return cls(run_dir, rare, StepTable.of(events))

    @property
    def is_running(self) -> bool:
        """Some process is writing events."""
        with (self.run_dir / EVENTS_FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def operations(self, first_step: int, last_step: int) -> list[WorkerStep]:
        """Of these steps, both included, as far as they are still kept."""
        events = read_events(self.run_dir / EVENTS_FILE)
        steps = [event for event in events if isinstance(event, WorkerStep)]
        return [event for event in steps if first_step <= event.step <= last_step]

    def follow(self, *, poll_s: float = 0.25) -> Iterator[Event | None]:
        """Events that came after this was opened, for ever; None: nothing new for ``poll_s``."""
        raise NotImplementedError
