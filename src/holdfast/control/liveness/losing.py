"""A worker is lost: fenced off, put down, and whoever depends on it hears of it.

The first notice counts. How it was noticed is known elsewhere, and so is what follows from it.
"""

import operator
from collections.abc import Iterable, Sequence
from itertools import compress

from holdfast.cluster import WorkerId
from holdfast.control.decide.reconfiguration import LostMember
from holdfast.control.effects import Effect, Fence, Send
from holdfast.control.inventory.losses import Loss, Losses, ProgressTracker
from holdfast.control.join.joining import Joining, failed
from holdfast.control.liveness.link_complaints import LinkComplaints
from holdfast.control.progress.reports import Reports
from holdfast.control.reconfigure.reconfiguring import Reconfigurations
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.protocol import messages


class Processes:
    """Under which process id each worker runs, or ran: the end of a fenced one is no news."""

    def __init__(self) -> None:
        self._pids: dict[WorkerId, int] = {}
        # Of several machines two processes may have the same id.
        self._fenced: set[tuple[WorkerId, int]] = set()

    def came(self, worker: WorkerId, pid: int) -> None:
        self._pids[worker] = pid
        self._fenced.discard((worker, pid))  # it was fenced, and has come back

    def started(self, worker: WorkerId, pid: int) -> None:
        self._pids[worker] = pid
        self._fenced.discard((worker, pid))  # another one, on another machine

    def pid_of(self, worker: WorkerId) -> int | None:
        return self._pids.get(worker)

    def is_fenced(self, worker: WorkerId, pid: int) -> bool:
        return (worker, pid) in self._fenced

    def fence(self, workers: Iterable[WorkerId]) -> None:
        self._fenced |= {(w, self._pids[w]) for w in workers if w in self._pids}


class Losing:
    def __init__(
        self,
        run: Run,
        tracker: ProgressTracker,
        losses: Losses,
        reports: Reports,
        joining: Joining,
        reconfigurations: Reconfigurations,
        link_complaints: LinkComplaints,
    ) -> None:
        self._run, self._tracker, self._losses, self._reports = run, tracker, losses, reports
        self._joining, self._reconfigurations = joining, reconfigurations
        self._link_complaints = link_complaints
        self.processes = Processes()
        self._fault_s: dict[WorkerId, float] = {}
        self._held: dict[WorkerId, int] = {}  # the stage of those who were lost

    def note_fault(self, worker: WorkerId, fault_s: float) -> None:
        """One that ends in a loss. The word of it may come after the notice of what it did."""
        self._fault_s[worker] = fault_s
        self._reconfigurations.fault_was(worker, fault_s)

    def stage_of(self, worker: WorkerId) -> int:
        """That it holds, or held when it was lost."""
        return self._run.stages.get(worker, self._held.get(worker, worker.stage))

    def refuse(self, worker: WorkerId, reason: str, at_s: float) -> list[Effect]:
        """A joiner that cannot take part is told why; its place stays free."""
        if worker in self._run.membership.missing:  # nobody had asked it
            self._run.membership.handle(m.Invited(worker, at_s))
        stop = Send(worker, messages.Stop(reason=reason))
        return [stop, *self.lose(m.GaveUp(worker, at_s), reason)]

    def dismiss(self, workers: Sequence[WorkerId], reason: str, at_s: float) -> list[Effect]:
        """Members that have nothing to do any more: nothing is lost with them."""
        stops = [Send(worker, messages.Stop(reason=reason)) for worker in workers]
        notices = [m.GaveUp(worker, at_s) for worker in workers]
        return [*stops, *self.lose_together(notices, reason, explained=True)]

    def gave_up(self, worker: WorkerId, reason: str, at_s: float) -> list[Effect]:
        """A member whose machine is out of something: lost as if it had died of it."""
        return self.lose(m.GaveUp(worker, at_s), reason, explained=True)

    def lose(
        self, notice: m.Stimulus, cause: str, *, explained: bool = False, silent: bool = False
    ) -> list[Effect]:
        return self.lose_together([notice], cause, explained=explained, silent=silent)

    def lose_together(
        self,
        notices: Sequence[m.Stimulus],
        cause: str,
        *,
        explained: bool = False,
        silent: bool = False,
    ) -> list[Effect]:
        """All members of them in one change: one epoch, one plan."""
        membership, at_s = self._run.membership, max(notice.at_s for notice in notices)
        is_member = [membership.phase(notice.worker) is m.WorkerPhase.MEMBER for notice in notices]
        effects: list[Effect] = []
        gone: list[LostMember] = []
        for notice in compress(notices, is_member):
            if m.Command.REPLAN in membership.handle(notice):
                worker = notice.worker
                self._losses.add(self._let_go(notice, cause, explained, silent))
                stage = self._held[worker] = self._run.placement.release(worker)
                gone.append(LostMember(worker, stage, self._fault_s.pop(worker, notice.at_s)))
                effects.append(Fence(worker))
        if gone:
            effects += [*self._reports.fold(at_s), *self._reconfigurations.lost(gone, at_s)]
        for notice in compress(notices, map(operator.not_, is_member)):
            if m.Command.FENCE in membership.handle(notice):
                effects += self._lose_joiner(self._let_go(notice, cause, explained, silent))
        return self.fenced(effects)

    def _let_go(self, notice: m.Stimulus, cause: str, explained: bool, silent: bool) -> Loss:
        worker = notice.worker
        self._run.assignments.forget(worker)
        self._run.machines.unseat(worker)
        self._link_complaints.forget(worker)
        step = self._tracker.step_of(worker)
        return Loss(worker, step, cause, notice.at_s, explained, silent)

    def _lose_joiner(self, loss: Loss) -> list[Effect]:
        worker, at_s = loss.worker, loss.at_s
        self._joining.forget(worker)
        if worker in self._run.placement.rolling_back:
            self._losses.add(loss)
            return [Fence(worker), *self._reconfigurations.forget(worker, at_s)]
        forgotten = self._reconfigurations.forget(worker, at_s)
        return [Fence(worker), failed(worker, loss.cause, at_s), *forgotten]

    def fenced(self, effects: list[Effect]) -> list[Effect]:
        """The end of a process that is let go is no news. A loss may have ended others."""
        self.processes.fence(effect.worker for effect in effects if isinstance(effect, Fence))
        return effects
