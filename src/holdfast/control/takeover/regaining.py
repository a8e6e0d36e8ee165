"""Another coordinator has taken over: who has come back, and what is done when all have.

Members hold their state and are asked for it as after any loss; all others begin again. Whoever
stays away for too long is lost.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.control.takeover.remembering import Former, recall
from holdfast.observability import events
from holdfast.protocol import messages

REGAIN_LIMIT_S = 15.0  # workers try several times a second
_HERE = (m.WorkerPhase.BUILDING, m.WorkerPhase.READY, m.WorkerPhase.COPYING, m.WorkerPhase.MEMBER)


class Regaining:
    def __init__(self, run: Run, parts: CoordinatorParts) -> None:
        self._run, self._parts = run, parts
        self._away: set[WorkerId] = set()  # whoever has said hello, and has not come back
        self._untold: set[WorkerId] = set()  # may not know that the run is finished
        self._began_s = 0.0

    def begin(self, former: Former) -> None:
        run, parts, snapshot = self._run, self._parts, former.snapshot
        recall(run, parts, former)
        self._began_s = former.at_s
        parts.failure_detector.forgive(former.at_s)
        if snapshot.phase == "FINISHED":
            self._untold = set(run.membership.all_in(m.WorkerPhase.FINISHED))
            run.lifecycle.enter(RunPhase.FINISHED)
            return
        self._away = set(run.membership.all_in(*_HERE))
        for name, stage in snapshot.rolling_back.items():
            if parse_worker(name) in self._away:
                parts.joining.stands_ready(parse_worker(name), stage)
        parts.joining.tell_boundaries_to(run.stages)
        parts.reconfigurations.await_all(former.at_s)

    @property
    def under_way(self) -> bool:
        return self._run.phase is RunPhase.REGAINING

    def awaits(self, told: messages.Reattach) -> bool:
        """Whether it is the one that is waited for, and no other of its name."""
        worker = parse_worker(told.worker)
        hello = self._run.hellos.get(worker)
        # Of an epoch that nobody has written down nothing else is known either.
        if worker not in self._away or hello is None or told.epoch >= self._run.epoch:
            return False
        return (told.pid, told.host, told.port) == (hello.pid, hello.host, hello.port)

    @property
    def is_expecting(self) -> bool:
        """The run was finished before: whoever comes back is told so."""
        return bool(self._untold)

    def tell_end(self, worker: WorkerId) -> messages.Stop:
        self._untold.discard(worker)
        return messages.Stop(reason="the run is finished", is_over=True)

    def is_starting(self, worker: WorkerId) -> bool:
        """It was asked for, and has not been heard."""
        return self._run.membership.phase(worker) is m.WorkerPhase.STARTING

    def on_reattach(self, told: messages.Reattach, at_s: float) -> list[Effect]:
        if not self.awaits(told):
            return []
        run, parts, worker = self._run, self._parts, parse_worker(told.worker)
        self._away.discard(worker)
        run.assignments.regain(worker, told.building)
        effects: list[Effect] = []
        if run.membership.phase(worker) is m.WorkerPhase.BUILDING:
            left = parts.reports.steps_left
            effects += parts.joining.begins_again(worker, left, at_s)
        return effects + self._go_if_all_are_back(at_s)

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """Of a stage that it was given before; only who begins again has been given one since."""
        if self._run.membership.phase(worker) is not m.WorkerPhase.BUILDING:
            return []
        return self._parts.joining.on_ready(worker, at_s)

    def tick(self, at_s: float) -> list[Effect]:
        if at_s - self._began_s <= REGAIN_LIMIT_S:
            return self._go_if_all_are_back(at_s)
        effects: list[Effect] = []
        for worker in sorted(self._away):
            cause = f"did not come back to the new coordinator within {REGAIN_LIMIT_S:g} s"
            effects += self._parts.losing.lose(m.ConnectionClosed(worker, at_s), cause)
        return effects + self._go_if_all_are_back(at_s)

    def _go_if_all_are_back(self, at_s: float) -> list[Effect]:
        """All that hold something, or build what the run has gone back to."""
        run, parts = self._run, self._parts
        self._away &= set(run.membership.live)
        needed = self._away & (run.stages.keys() | set(run.membership.all_in(m.WorkerPhase.READY)))
        if not self.under_way or needed:
            return []
        took_over = events.TookOver(
            at_s=at_s,
            step=parts.reports.next_step,
            workers=tuple(map(str, sorted(run.stages))),
            took_s=at_s - self._began_s,
        )
        changes = parts.reconfigurations
        back = changes.all_are_back(at_s, was_returning=run.lifecycle.was_returning)
        return [Emit(took_over), *parts.losing.fenced(back)]
