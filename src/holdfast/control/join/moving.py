"""Who is to hold another stage, or is left out: given no work first, it goes when it has none.

All who can go at once do: their stages keep a holder. What comes then, the stop, the copies and
the way back in, is done elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.join.switching import Switching
from holdfast.control.plans import Plans
from holdfast.control.state.current_plan import Steady
from holdfast.control.state.run import Run


class MoveOrder(NamedTuple):
    worker: WorkerId
    stage: int | None  # that it is to hold; None: it is left out
    reason: str
    may_return: bool = False  # as another process, elsewhere


class _Spared(NamedTuple):
    orders: tuple[MoveOrder, ...]
    lanes: Steady  # in which these have nothing to do


class Moving:
    def __init__(
        self, run: Run, plans: Plans, tracker: ProgressTracker, switching: Switching
    ) -> None:
        self._run, self._plans, self._tracker, self._switching = run, plans, tracker, switching
        self._orders: list[MoveOrder] = []
        self._spared: _Spared | None = None
        self._is_due = False
        self._moved_from: dict[WorkerId, int] = {}  # asked once: who could not leave stays

    @property
    def under_way(self) -> bool:
        """Somebody is to leave, and works no more or soon no more."""
        return self._spared is not None

    @property
    def is_wanted(self) -> bool:
        return self.under_way or bool(self._orders)

    def order(self, orders: Iterable[MoveOrder]) -> None:
        self._orders = list(orders)

    def members_changed(self) -> None:
        """Perhaps somebody should now hold another stage."""
        self._is_due = True

    def next(self, steps_left: int, at_s: float) -> list[Effect]:
        """The next ones are given no more work. Only while nobody is on the way."""
        assert self._spared is None
        if self._orders:
            return self._spare(at_s)
        if not self._is_due:
            return []
        self._is_due = False
        run = self._run
        if run.stages in (run.first_stages, self._moved_from):
            return []
        moves, reason = self._plans.moves(steps_left)
        for move in moves:
            if move.from_stage is not None and len(run.placement.holders(move.from_stage)) > 1:
                self._moved_from = dict(run.stages)
                self._orders = [MoveOrder(move.worker, move.to_stage, reason)]
                return self._spare(at_s)
        return []

    def leaving(self) -> tuple[MoveOrder, ...]:
        """Those of whom nothing is lost any more when they go; empty: not yet, or not at all."""
        assert self._spared is not None
        orders, lanes = self._spared
        if self._run.plan.steady is not lanes:  # somebody was lost since, or came: ask anew
            self._spared, self._is_due = None, True
            self._orders.clear()
            return ()
        if any(
            self._tracker.step_of(order.worker) < self._run.plan.steady_from for order in orders
        ):
            return ()
        self._spared = None
        return orders

    def _spare(self, at_s: float) -> list[Effect]:
        workers = [order.worker for order in self._orders]
        together = can_leave(workers, self._run.stages)
        if not together:
            self._orders.clear()  # somebody was lost since
            return []
        now = tuple(order for order in self._orders if order.worker in together)
        self._orders = [order for order in self._orders if order not in now]
        lanes = self._plans.without(together)
        self._spared = _Spared(now, lanes)
        cause = "drop" if now[0].stage is None else "move"
        return self._switching.begin(lanes, cause, at_s)


def can_leave(workers: Sequence[WorkerId], stages: Mapping[WorkerId, int]) -> list[WorkerId]:
    """The first of them who can go together; empty if one of them is no member any more."""
    if any(worker not in stages for worker in workers):
        return []
    left = Counter(stages.values())
    found = []
    for worker in workers:
        if left[stages[worker]] > 1:
            left[stages[worker]] -= 1
            found.append(worker)
    return found


def num_turns(moves: Mapping[WorkerId, int], stages: Mapping[WorkerId, int]) -> int | None:
    """Until all have moved; None: a stage would be without a holder."""
    held, left, count = dict(stages), dict(moves), 0
    while left:
        together = can_leave(list(left), held)
        if not together:
            return None
        held.update((worker, left.pop(worker)) for worker in together)
        count += 1
    return count
