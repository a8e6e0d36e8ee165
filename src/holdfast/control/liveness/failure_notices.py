"""What is said of a worker that is gone: by its agent, by its connection, by the others.

Silence is looked for elsewhere, and what is done about a loss as well.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit
from holdfast.control.inventory.losses import Losses, ProgressTracker
from holdfast.control.join.replacing import Replacing
from holdfast.control.join.starting import Starting
from holdfast.control.liveness.complaints import Complaints
from holdfast.control.liveness.exits import Deaths
from holdfast.control.liveness.failure_detector import FailureDetector
from holdfast.control.liveness.losing import Losing
from holdfast.control.liveness.lost_machines import CLOSED, LostMachines
from holdfast.control.progress.reports import Reports
from holdfast.control.state.lifecycle import BEFORE_TRAINING
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import HoldfastError
from holdfast.faults.fault import FaultKind
from holdfast.observability import events
from holdfast.protocol import messages

_DEADLY = (FaultKind.KILL, FaultKind.HANG)  # faults that end in a loss
# From somebody who is gone only these are of use, or come from somebody else.
_FROM_THE_GONE = (
    messages.Hello,
    messages.StepReport,
    messages.CheckpointPart,
    messages.FaultReport,
    messages.WorkerStarted,
    messages.WorkerExited,
)
_FROM_THE_AGENT = (
    messages.WorkerStarted,
    messages.WorkerNotStarted,
    messages.WorkerExited,
    messages.WorkerRuns,
)


class FailureNotices:
    def __init__(
        self,
        run: Run,
        tracker: ProgressTracker,
        losses: Losses,
        starting: Starting,
        reports: Reports,
        replacing: Replacing,
        lost_machines: LostMachines,
        losing: Losing,
        complaints: Complaints,
        failure_detector: FailureDetector,
    ) -> None:
        self._run, self._tracker, self._losses, self._reports = run, tracker, losses, reports
        self._starting, self._replacing = starting, replacing
        self._lost_machines = lost_machines
        self._losing, self._complaints = losing, complaints
        self._failure_detector = failure_detector
        self._processes = losing.processes
        self._complained: set[str] = set()  # before training
        self._deaths = Deaths()

    def hear(self, message: messages.Message, at_s: float) -> bool:
        """Whether the message counts: those of the gone do not."""
        name = getattr(message, "worker", "")
        worker = parse_worker(name) if name else None
        if worker is None or not self._run.membership.knows(worker):
            return False
        if isinstance(message, messages.Hello | messages.Reattach):
            self._processes.came(worker, message.pid)
            self._lost_machines.explained(worker)
            self._failure_detector.came(worker)
        if isinstance(message, messages.Heartbeat) or worker in self._run.stages:
            self._failure_detector.beat(worker)
        if not isinstance(message, _FROM_THE_AGENT):
            self._failure_detector.spoke(worker, at_s)
        gone = worker in self._run.membership.missing
        return not gone or isinstance(message, _FROM_THE_GONE)

    # --- its agent, and its connection ---

    def on_started(self, started: messages.WorkerStarted, at_s: float) -> list[Effect]:
        worker = parse_worker(started.worker)
        if self._run.membership.phase(worker) is m.WorkerPhase.STARTING:
            self._processes.started(worker, started.pid)
        return []

    def on_not_started(self, told: messages.WorkerNotStarted, at_s: float) -> list[Effect]:
        """As if it had ended at once: whether it is tried again is decided in the same way."""
        worker, cause = parse_worker(told.worker), f"could not be started: {told.reason}"
        if self._run.phase in BEFORE_TRAINING:
            raise HoldfastError(
                f"worker {told.worker} {cause}; expected room for one more process. "
                f"All workers were stopped. {self._run.advice}"
            )
        if self._run.membership.phase(worker) is not m.WorkerPhase.STARTING:
            return []  # somebody else has come in its place
        return self._losing.lose(m.ProcessExited(worker, at_s), cause)

    def on_exited(self, exited: messages.WorkerExited, at_s: float) -> list[Effect]:
        worker = parse_worker(exited.worker)
        if self._run.phase in BEFORE_TRAINING:
            return self._exited_early(exited, at_s)
        pid = self._processes.pid_of(worker)
        if pid is not None and pid != exited.pid:
            return []  # a process that somebody else has replaced
        self._lost_machines.explained(worker)
        said = self._note_death(worker, exited, at_s)
        if pid is None or not self._processes.is_fenced(worker, exited.pid):
            lost = m.ProcessExited(worker, at_s)
            return [*self._losing.lose(lost, exited.how, explained=True), *said]
        self._losses.explain(worker, exited.how)
        return said

    def on_runs(self, runs: messages.WorkerRuns, at_s: float) -> list[Effect]:
        worker = parse_worker(runs.worker)
        if self._processes.pid_of(worker) == runs.pid:
            self._failure_detector.runs(worker, at_s)
        return []

    def _note_death(
        self, worker: WorkerId, exited: messages.WorkerExited, at_s: float
    ) -> list[Effect]:
        """A replacement that dies as the one before it did is the last one, or ends the run."""
        run, stage = self._run, self._losing.stage_of(worker)
        is_held = any(holder != worker for holder in run.placement.holders(stage))
        step = self._reports.next_step
        try:
            is_last = self._deaths.note(worker, stage, exited.code, step, is_held=is_held)
        except HoldfastError as why:
            raise HoldfastError(f"{why} {run.advice}") from why
        if not is_last or not self._replacing.leave_out(worker):
            return []
        reason = (
            f"worker {worker} died a second time of a cause that would be the same for another "
            f"process, {exited.how}: it is not started again, the others go on without it"
        )
        return [Emit(events.Warned(at_s=at_s, reason=reason))]

    def _exited_early(self, exited: messages.WorkerExited, at_s: float) -> list[Effect]:
        if exited.worker in self._complained:
            return []  # tick() ends the run if nobody says what became of the one it lost
        why = HoldfastError(
            f"worker {exited.worker} (pid {exited.pid}) ended with {exited.how} before training "
            f"started; all workers were stopped. {self._run.advice}"
        )
        return self._starting.ended(why, at_s)

    def closed(self, worker: WorkerId, at_s: float) -> list[Effect]:
        if self._run.phase in BEFORE_TRAINING:
            return self._starting.suspect(str(worker), CLOSED, at_s)
        return self._lost_machines.closed(worker, at_s)

    # --- what it says itself ---

    def on_failed(self, message: messages.Failed, at_s: float) -> list[Effect]:
        """It ends because of another worker, or it is a joiner, whose end harms nobody."""
        worker = parse_worker(message.worker)
        if not message.lost:
            return self._losing.refuse(worker, message.reason, at_s)
        if self._run.phase not in BEFORE_TRAINING:
            return self._complaints.complain(worker, parse_worker(message.lost), at_s)
        self._complained.add(message.worker)
        return self._starting.suspect(message.lost, f"was lost by {message.worker}", at_s)

    def is_joiner(self, name: str) -> bool:
        run, worker = self._run, parse_worker(name)
        if run.phase in BEFORE_TRAINING or worker in run.placement.rolling_back:
            return False
        return run.membership.phase(worker) in m.JOINING

    def on_fault(self, fired: messages.FaultReport, at_s: float) -> list[Effect]:
        worker = parse_worker(fired.worker)
        is_news = self._run.assignments.fire(fired.fault)
        self._tracker.note(worker, self._run.epoch, fired.step, fired.done, fired.attempt)
        if fired.fault_kind in _DEADLY:
            self._losing.note_fault(worker, fired.at_s)
        if not is_news:
            return []
        event = events.FaultFired(
            at_s=fired.at_s,
            worker=fired.worker,
            fault=fired.fault,
            step=fired.step,
            point=fired.point,
        )
        return [Emit(event)]
