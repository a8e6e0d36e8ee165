"""The run is over, well or not: everyone is told, once. Why it is over was found elsewhere."""

from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages


class Finish:
    def __init__(self, run: Run, parts: CoordinatorParts) -> None:
        self._run, self._parts = run, parts

    def fail(self, why: HoldfastError, at_s: float, details: str = "") -> list[Effect]:
        run, parts = self._run, self._parts
        if run.lifecycle.over:
            return []
        effects: list[Effect] = []
        if run.phase not in BEFORE_TRAINING:
            effects += parts.losses.show(at_s, all_of_them=True)
            effects += parts.joining.unfinished(at_s)
            effects.append(Emit(events.RunFailed(at_s=at_s, reason=str(why))))
        run.lifecycle.enter(RunPhase.FAILED)
        run.ending.fail(why, details)
        return effects + self._stop_all(str(why), at_s)

    def succeed(self, at_s: float) -> list[Effect]:
        """All have finished; nothing while the last checkpoint may still come."""
        run, reports = self._run, self._parts.reports
        if reports.checkpoints.is_pending():
            return []
        finished = reports.run_finished(at_s)  # raises if replicas disagree
        reports.checkpoints.check_end()
        if run.ending.is_early and not run.ending.is_good:
            raise run.ended_early()
        reports.nonfinite.check_end(run.advice)
        unfinished = self._parts.joining.unfinished(at_s)
        run.lifecycle.enter(RunPhase.FINISHED)
        return [*unfinished, Emit(finished), *self._stop_all("the run is finished", at_s)]

    def _stop_all(self, reason: str, at_s: float) -> list[Effect]:
        live = self._run.membership.live
        for worker in live:
            self._run.membership.handle(m.Ended(worker, at_s))
        return [Send(worker, messages.Stop(reason=reason, is_over=True)) for worker in live]
