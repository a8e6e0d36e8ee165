"""Other lanes for the same members, without a stop: offered to all, adopted by all in one step.

Nobody begins a step that might be the first with the new lanes before it knows. A change that
stops everyone makes an offer void. Whether other lanes are wanted is decided elsewhere.
"""

from dataclasses import dataclass, field

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.state.current_plan import Steady
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.protocol import messages


@dataclass
class _Offer:
    steady: Steady
    cause: str
    at_s: float
    epoch: int
    steps: dict[WorkerId, int] = field(default_factory=dict)  # of those who have answered


class Switching:
    def __init__(self, run: Run, tracker: ProgressTracker) -> None:
        self._run, self._tracker = run, tracker
        self._number = 0
        self._offer: _Offer | None = None

    @property
    def under_way(self) -> bool:
        return self._offer is not None and self._offer.epoch == self._run.epoch

    def begin(self, steady: Steady, cause: str, at_s: float) -> list[Effect]:
        run = self._run
        lanes = steady.schedule.lanes
        if {w: lane[-1].stage for w, lane in lanes.items() if lane} != run.stages:
            return []  # somebody has come or gone since they were made
        self._number += 1
        self._offer = _Offer(steady, cause, at_s, run.epoch)
        text = steady.schedule.dumps()
        offer = messages.Offer(epoch=run.epoch, number=self._number, schedule=text)
        return [Send(worker, offer) for worker in sorted(run.stages)]

    def on_offered(self, offered: messages.Offered, at_s: float) -> list[Effect]:
        offer, run = self._offer, self._run
        if offer is None or (offered.epoch, offered.number) != (run.epoch, self._number):
            return []
        offer.steps[parse_worker(offered.worker)] = offered.step
        if not run.stages.keys() <= offer.steps.keys():
            return []
        self._offer = None
        first_step = max(offer.steps.values()) + messages.OFFER_AHEAD
        run.plan.switch(offer.steady, first_step)
        self._tracker.switch(first_step, offer.steady.schedule)
        adopt = messages.Adopt(epoch=run.epoch, number=self._number, first_step=first_step)
        switched = events.PlanSwitched(
            at_s=at_s,
            step=first_step,
            cause=offer.cause,
            took_s=at_s - offer.at_s,
            period_s=offer.steady.period_s,
            reason=offer.steady.reason,
        )
        return [*(Send(worker, adopt) for worker in sorted(run.stages)), Emit(switched)]
