"""What is kept for the case of a loss, and what is made of it then."""

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.observability.events.timed import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Timed):
    step: int  # optimizer steps that the state has had
    path: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Timed):
    """A checkpoint could not be written; training goes on."""

    step: int  # as in CheckpointSaved
    worker: str  # whose part it was; empty: the parts were there, but not the whole
    reason: str
    next_writer: str  # who tries it a little later; empty: nobody, before the next one is due
    newest: int  # step of the newest whole one; -1: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChosen(Timed):
    """How often checkpoints are taken from now on."""

    first: int  # version that is saved first
    every: int  # steps
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanged(Timed):
    """Which boundaries are logged, or that a worker's log has stopped or begun again."""

    worker: str  # empty: of all workers
    step: int
    logging: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBegan(Timed):
    """Stages that nobody holds are computed again, from a checkpoint and the log."""

    stages: tuple[int, ...]  # that were lost
    replayed: tuple[int, ...]  # those and whatever lies between them and the next logged boundaries
    from_step: int
    to_step: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRebuilt(Timed):
    """The replay is done; somebody will load the state."""

    stages: tuple[int, ...]
    replayed: tuple[int, ...]
    version: int  # optimizer steps that the state has had
    workers: tuple[str, ...]
    operations: int  # F, B and W that were run for it
    read_bytes: int  # from logs
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack(Timed):
    """A loss could not be made up for. All went back; the steps from ``to_step`` on run again."""

    lost_stage: int
    to_step: int  # optimizer steps that the state gone back to has had, as in CheckpointSaved
    checkpoint: str  # its directory; empty: a copy in memory, or the initial parameters
    reason: str
    thrown_away: int = 0  # finished steps that will be trained again


StateEvent: TypeAlias = (
    CheckpointSaved
    | CheckpointFailed
    | IntervalChosen
    | LogChanged
    | ReplayBegan
    | StageRebuilt
    | WentBack
)
