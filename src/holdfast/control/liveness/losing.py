"""A worker is lost: fenced off, put down, and whoever depends on it hears of it.

The first notice counts. How it was noticed is known elsewhere, and so is what follows from it.
"""

from collections.abc import Iterable

from holdfast.cluster import WorkerId
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
        self._fenced: set[int] = set()

    def came(self, worker: WorkerId, pid: int) -> None:
        self._pids[worker] = pid
        self._fenced.discard(pid)  # it was fenced, and has come back

    def started(self, worker: WorkerId, pid: int) -> None:
        self._pids[worker] = pid

    def pid_of(self, worker: WorkerId) -> int | None:
        return self._pids.get(worker)

    def is_fenced(self, pid: int) -> bool:
        return pid in self._fenced

    def fence(self, workers: Iterable[WorkerId]) -> None:
        self._fenced |= {self._pids[worker] for worker in workers if worker in self._pids}


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

    def gave_up(self, worker: WorkerId, reason: str, at_s: float) -> list[Effect]:
        """A member whose machine is out of something: lost as if it had died of it."""
        return self.lose(m.GaveUp(worker, at_s), reason, explained=True)

    def lose(
        self, notice: m.Stimulus, cause: str, *, explained: bool = False, silent: bool = False
    ) -> list[Effect]:
        run, worker, at_s = self._run, notice.worker, notice.at_s
        commands = run.membership.handle(notice)
        if m.Command.FENCE not in commands:
            return []
        run.assignments.forget(worker)
        self._link_complaints.forget(worker)
        loss = Loss(worker, self._tracker.step_of(worker), cause, at_s, explained, silent)
        fence = Fence(worker)
        if m.Command.REPLAN in commands:
            self._losses.add(loss)
            stage = self._held[worker] = run.placement.release(worker)
            fault_s = self._fault_s.pop(worker, at_s)
            change = self._reconfigurations.lost(worker, stage, fault_s, at_s)
            return self._fenced([fence, *self._reports.fold(at_s), *change])
        self._joining.forget(worker)
        if worker in run.placement.rolling_back:
            self._losses.add(loss)
            return self._fenced([fence, *self._reconfigurations.forget(worker, at_s)])
        forgotten = self._reconfigurations.forget(worker, at_s)
        return self._fenced([fence, failed(worker, cause, at_s), *forgotten])

    def _fenced(self, effects: list[Effect]) -> list[Effect]:
        """A loss may have ended others."""
        self.processes.fence(effect.worker for effect in effects if isinstance(effect, Fence))
        return effects
