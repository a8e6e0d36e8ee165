"""What a worker tells of one of its steps. Plain data: how it was measured, and what it means,
is not known here."""

from typing import NamedTuple

from holdfast.cluster import WorkerId


class OpTime(NamedTuple):
    """One operation. R is left out: most of its time is waiting."""

    kind: str  # F, B, W or BW
    microbatch: int
    start_s: float
    end_s: float
    cpu_s: float  # of the thread that ran it; near 0 on an emulated device
    size: int  # of its input, in elements; 0: not known

    @property
    def took_s(self) -> float:
        return self.end_s - self.start_s


class Transfer(NamedTuple):
    """What came from one worker since the report before."""

    source: WorkerId
    kind: str  # pipeline, reduction or probe
    count: int  # type: ignore[assignment]  # tuples have a method of this name
    num_bytes: int  # of all of them
    moved_s: float  # median time under way; waiting for the sender is no part of it


class StepObservation(NamedTuple):
    worker: WorkerId
    stage: int  # that it held; not always the one in its name
    step: int
    ops: tuple[OpTime, ...]
    transfers: tuple[Transfer, ...]
