"""What a lost worker had finished: data, for whoever counts what is run again."""

from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.schedule.operation import Op


@dataclass(frozen=True)
class Dead:
    """A lost worker, in the step it was in. Of two steps, if both are known, one entry each."""

    worker: WorkerId
    stage: int
    step: int
    done: tuple[Op, ...]  # operations it had finished of its lane of the step
    attempt: int | None = None  # what was done in another one is void, not redone; None: not known
