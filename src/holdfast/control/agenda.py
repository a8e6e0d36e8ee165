"""Which change comes next, whenever nothing else is under way. Makes none itself."""

from collections.abc import Sequence

from holdfast.control.decide.reconfiguration import ChangeRequest
from holdfast.control.effects import Effect
from holdfast.control.finish import Finish
from holdfast.control.join.joiner import Joiner
from holdfast.control.join.moving import MoveOrder
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run

_TOO_SLOW = "it was too slow and is left out"


class Agenda:
    def __init__(self, run: Run, parts: CoordinatorParts, finish: Finish) -> None:
        self.run, self.parts, self._finish = run, parts, finish

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way, nor offered."""
        busy = self.parts.reconfigurations.current is not None or self.parts.switching.under_way
        return self.run.phase is RunPhase.TRAINING and not busy

    @property
    def is_ending(self) -> bool:
        """Nothing new is begun any more."""
        return self.run.ending.is_early or bool(self.parts.reports.finished)

    def next(self, at_s: float) -> list[Effect]:
        run, parts = self.run, self.parts
        if run.phase is not RunPhase.TRAINING:
            return []
        if why := parts.reports.nonfinite.reason:
            run.ending.ask(why, at_s)
        next_step, admission = parts.reports.next_step, parts.joining.admission
        ordered = [] if self.is_ending else admission.ordered(next_step, at_s)
        if not self.is_quiet:
            return ordered
        if parts.reports.all_finished:
            return ordered + self._finish.succeed(at_s)
        if run.ending.is_undecided:
            return ordered + parts.reconfigurations.begin(ChangeRequest("interrupt"), at_s)
        ordered += parts.reports.after_validation(at_s)
        if self.is_ending:
            return ordered
        return ordered + (self._enter(at_s) or self.move(at_s) or self.mitigate(at_s))

    def drain(self, at_s: float) -> list[Effect]:
        return [] if self.parts.joining.under_way else self.parts.draining.next(at_s)

    def when_quiet(self, at_s: float) -> list[Effect]:
        """Now and then, and only while nothing is under way or about to end."""
        return [*self.drain(at_s), *self.parts.replacing.due(at_s), *self._try_better(at_s)]

    def _enter(self, at_s: float) -> list[Effect]:
        joining = self.parts.joining
        entering = tuple(joining.caught_up(at_s))
        if not entering:
            return []
        moved = all(joining.joiners[worker].from_stage is not None for worker in entering)
        request = ChangeRequest("move" if moved else "join", entering=entering)
        return self.parts.reconfigurations.begin(request, at_s)

    def move(self, at_s: float) -> list[Effect]:
        """Only while nobody else is on the way."""
        moving = self.parts.moving
        if moving.under_way:
            return self._leave(moving.leaving(), at_s)
        if self.parts.joining.under_way:
            return []
        return moving.next(self.parts.reports.steps_left, at_s)

    def _leave(self, orders: Sequence[MoveOrder], at_s: float) -> list[Effect]:
        parts, joiners = self.parts, []
        if dropped := [order for order in orders if order.stage is None]:
            return self._drop(dropped, at_s)
        for worker, stage, reason, _ in orders:
            assert stage is not None
            joiners.append((worker, Joiner(stage, self.run.stages[worker], reason)))
        if not joiners:
            return []
        return parts.reconfigurations.begin(ChangeRequest("move", leaving=tuple(joiners)), at_s)

    def _drop(self, orders: Sequence[MoveOrder], at_s: float) -> list[Effect]:
        """Together, in one change."""
        for order in orders:
            if not order.may_return:
                self.parts.replacing.leave_out(order.worker)
        workers, reason = [order.worker for order in orders], orders[0].reason
        return self.parts.losing.dismiss(workers, reason, at_s)

    def mitigate(self, at_s: float) -> list[Effect]:
        """Something is slow, or is so no longer, and it pays to change who does what."""
        mitigating, moving = self.parts.mitigating, self.parts.moving
        if mitigating.wanted is None or moving.is_wanted or self.parts.joining.under_way:
            return []
        remedy, effects = mitigating.take(self.parts.reports.next_step, at_s)
        option = remedy.option
        if remedy.steady is not None:
            switching = self.parts.switching
            return effects + switching.begin(remedy.steady, option.action.value, at_s)
        moving.order(MoveOrder(worker, stage, option.what) for worker, stage in remedy.moves)
        if remedy.drops is not None:
            moving.order([MoveOrder(remedy.drops, None, _TOO_SLOW)])
        return effects + self.move(at_s)

    def _try_better(self, at_s: float) -> list[Effect]:
        if not self.is_quiet or self.parts.joining.under_way:
            return []
        better = self.parts.plans.better(self.parts.reports.steps_left)
        return self.parts.switching.begin(better, "better plan", at_s) if better else []
