"""What a worker tells of one of its steps. Plain data: how it was measured, and what it means,
is not known here."""

from collections.abc import Iterable
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
    moved_s: (
        float  # median, from the sender's clock to the receiver's; without waiting for the sender
    )


class StepObservation(NamedTuple):
    worker: WorkerId
    stage: int  # that it held; not always the one in its name
    step: int
    ops: tuple[OpTime, ...]
    transfers: tuple[Transfer, ...]
    at_s: float | None = None  # when it was told, by the clock of whoever hears all; None: unknown


def without(reports: Iterable[StepObservation], worker: WorkerId) -> list[StepObservation]:
    """Neither what it told nor what came from it."""
    return [
        each._replace(transfers=tuple(row for row in each.transfers if row.source != worker))
        for each in reports
        if each.worker != worker
    ]
