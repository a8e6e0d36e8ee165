"""Who was lost and why, and what work died with it. Knows no plan and makes none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit
from holdfast.control.inventory.lost_work import Dead
from holdfast.observability import events
from holdfast.schedule.operation import Op
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Schedule

EXPLAIN_S = 0.3  # by then the agent has told how the process ended


@dataclass(frozen=True, slots=True)
class Loss:
    worker: WorkerId
    step: int
    cause: str
    at_s: float
    explained: bool  # by the agent: no better cause will come
    silent: bool = False  # nobody knows more: it may only have been busy


class Losses:
    """First notice wins; a cause that comes soon after it is the one that is shown."""

    def __init__(self) -> None:
        self.last: dict[WorkerId, Loss] = {}
        self._unshown: set[WorkerId] = set()

    def add(self, loss: Loss) -> None:
        self.last[loss.worker] = loss
        self._unshown.add(loss.worker)

    def explain(self, worker: WorkerId, how: str) -> None:
        loss = self.last.get(worker)
        if loss is not None and not loss.explained:
            self.last[worker] = replace(loss, cause=how, explained=True, silent=False)

    def explained(self, worker: WorkerId, at_s: float) -> bool:
        loss = self.last[worker]
        return loss.explained or at_s - loss.at_s > EXPLAIN_S

    def show(self, at_s: float, *, all_of_them: bool = False) -> list[Effect]:
        """Events of those whose cause is as clear as it will be."""
        due = [w for w in sorted(self._unshown) if all_of_them or self.explained(w, at_s)]
        self._unshown.difference_update(due)
        return [Emit(_event(self.last[worker])) for worker in due]


def _event(loss: Loss) -> events.WorkerLost:
    return events.WorkerLost(
        at_s=loss.at_s, worker=str(loss.worker), step=loss.step, cause=loss.cause
    )


_NOWHERE = (0, 0, 0)


class _Earlier(NamedTuple):
    """What a worker had finished of a step that was planned anew. Looked up when it dies."""

    step: int
    lanes: Mapping[WorkerId, tuple[Op, ...]]
    done: int
    before: "_Earlier | None"  # the plan of the same step before that

    def finished(self, worker: WorkerId) -> tuple[Op, ...]:
        parts: list[tuple[Op, ...]] = []
        plan: _Earlier | None = self
        while plan is not None:
            parts.append(plan.lanes.get(worker, ())[: plan.done])
            plan = plan.before
        return tuple(chain.from_iterable(reversed(parts)))


class ProgressTracker:
    """How far each worker was when it was last heard of."""

    def __init__(self) -> None:
        self._epoch = 0
        self._steady: list[tuple[int, Schedule]] = []  # the first whole step of each
        self._running: dict[int, RunningStep] = {}
        self._before: dict[WorkerId, _Earlier] = {}
        # step, attempt, operations finished of its lane
        self._at: dict[WorkerId, tuple[int, int, int]] = {}

    def adopt(
        self,
        epoch: int,
        running: Iterable[RunningStep],
        steady: Schedule,
        told: Mapping[WorkerId, tuple[int, int, int]],
    ) -> None:
        """New lanes. ``told``: each member's step, attempt, and operations finished in it.

        What was finished in a step before it was planned anew is finished still.
        """
        following = {one.step: one for one in running}
        before = {}
        for worker, (step, attempt, done) in told.items():
            if step in following and following[step].attempt == attempt:
                earlier = _Earlier(step, self._lanes(step), done, self._earlier(worker, step))
                before[worker] = earlier
        self._before, self._at = before, {w: (s, attempt, 0) for w, (s, attempt, _) in told.items()}
        self._epoch, self._running, self._steady = epoch, following, [(0, steady)]

    def switch(self, first_step: int, steady: Schedule) -> None:
        """The same members go over to other lanes without a stop."""
        self._steady.append((first_step, steady))

    def note(self, worker: WorkerId, epoch: int, step: int, done: int, attempt: int = 0) -> None:
        """Counts in lanes that are no more are of no use."""
        if epoch >= self._epoch:
            self._at[worker] = max((step, attempt, done), self._at.get(worker, _NOWHERE))

    def forget(self, worker: WorkerId) -> None:
        self._at.pop(worker, None)
        self._before.pop(worker, None)

    def step_of(self, worker: WorkerId) -> int:
        return self._at.get(worker, _NOWHERE)[0]

    def dead(self, worker: WorkerId, stage: int) -> list[Dead]:
        """What it had finished in the step it was in, and in the one before."""
        step, attempt, done = self._at.get(worker, _NOWHERE)
        now = Dead(worker, stage, step, self._finished(worker, step, done), attempt)
        if not step:
            return [now]
        whole = len(self._lane(worker, step - 1))
        return [Dead(worker, stage, step - 1, self._finished(worker, step - 1, whole)), now]

    def _finished(self, worker: WorkerId, step: int, done: int) -> tuple[Op, ...]:
        earlier = self._earlier(worker, step)
        before = () if earlier is None else earlier.finished(worker)
        return before + self._lane(worker, step)[:done]

    def _earlier(self, worker: WorkerId, step: int) -> _Earlier | None:
        earlier = self._before.get(worker)
        return earlier if earlier is not None and earlier.step == step else None

    def _lane(self, worker: WorkerId, step: int) -> tuple[Op, ...]:
        return self._lanes(step).get(worker, ())

    def _lanes(self, step: int) -> Mapping[WorkerId, tuple[Op, ...]]:
        running = self._running.get(step)
        if running:
            return running.schedule.lanes
        steady = [schedule for first, schedule in self._steady if first <= step]
        return steady[-1].lanes if steady else {}
