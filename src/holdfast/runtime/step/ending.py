"""The end of steps in one epoch: sums are reduced, told, judged and applied.

Knows with whom, but not how: the reduction is the epoch's, the life of an update the commit's.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.verdict import Verdicts
from holdfast.runtime.state.boundary_log import BoundaryLog
from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.step.attempt import Attempt
from holdfast.runtime.step.epoch import Epoch
from holdfast.runtime.update.commit import Committed, StageCommit
from holdfast.transport.base import Tag


@dataclass(frozen=True)
class StepEnding:
    epoch: Epoch
    state: StageState
    commit: StageCommit
    verdicts: Verdicts
    log: BoundaryLog
    reach: Callable[[int, str], None] = lambda step, point: None
    """Told of every point where a fault may be injected."""

    def tell(self) -> None:
        self.commit.tell(self.verdicts)

    def missing(self) -> list[tuple[WorkerId, Tag]]:
        """What the verdict of the step before still waits for."""
        return self.commit.missing(self.verdicts)

    def reduce(self, at: Attempt) -> None:
        step = at.step
        self.reach(step, "reduce")
        result = self.epoch.reduce(
            at.routes, step, at.number, on_sent=lambda: self.reach(step, "partials")
        )
        self.state.choose_exponents(result.reduced.maxima)
        self.commit.accept(result)
        self.log.reduced(result)
        self.reach(step, "reduced")
        self.tell()
        self.reach(step, "told")

    def commit_step(self) -> Committed:
        """Wait for the verdict and make the step final."""
        committed = self.commit.commit_step(self.verdicts)
        self.log.committed(committed.step, committed.verdict)
        return committed
