"""Signs that a worker is gone, from wherever they come, and the silence that is one as well.

The first notice counts. What is done about a loss is decided elsewhere.
"""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control import membership as m
from holdfast.control.effects import AskStack, Effect, Emit, Fence, LookAt, ReportStuck, Send
from holdfast.control.exits import Deaths
from holdfast.control.joining import Joining, failed
from holdfast.control.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.links import Links
from holdfast.control.losses import Loss, Losses, Work
from holdfast.control.progress import Progress, stuck_event, stuck_words
from holdfast.control.reconfiguration import ChangeRequest
from holdfast.control.reconfiguring import Reconfigurations
from holdfast.control.replacing import Replacing
from holdfast.control.reports import Reports
from holdfast.control.run import Run
from holdfast.control.silence import Silence
from holdfast.control.starting import Starting
from holdfast.errors import ConfigError, HoldfastError
from holdfast.faults.fault import FaultKind
from holdfast.observability import events
from holdfast.protocol import messages

_DEADLY = (FaultKind.KILL, FaultKind.HANG)  # faults that end in a loss
# From somebody who is gone only these are of use, or come from somebody else.
_FROM_THE_GONE = (
    messages.Hello,
    messages.StepReport,
    messages.CheckpointPart,
    messages.FaultFired,
    messages.WorkerStarted,
    messages.WorkerExited,
)
_FROM_THE_AGENT = (
    messages.WorkerStarted,
    messages.WorkerNotStarted,
    messages.WorkerExited,
    messages.WorkerRuns,
)


class Notices:
    def __init__(
        self,
        run: Run,
        work: Work,
        losses: Losses,
        starting: Starting,
        joining: Joining,
        changes: Reconfigurations,
        reports: Reports,
        replacing: Replacing,
        progress: Progress,
    ) -> None:
        self._run, self._work, self._losses, self._reports = run, work, losses, reports
        self._starting, self._joining, self._changes = starting, joining, changes
        self._silence, self._progress, self._replacing = Silence(), progress, replacing
        self._beats: set[WorkerId] = set()  # those that have begun to send heartbeats
        self._fault_s: dict[WorkerId, float] = {}
        self._pids: dict[WorkerId, int] = {}
        self._gone_pids: set[int] = set()
        self._complained: set[str] = set()
        self._deaths = Deaths()
        self._held: dict[WorkerId, int] = {}  # the stage of those who were lost
        self._stuck_in = -1  # step in which a wait has run out
        self._links = Links()

    def hear(self, message: messages.Message, at_s: float) -> bool:
        """Whether the message counts: those of the gone do not."""
        name = getattr(message, "worker", "")
        worker = parse_worker(name) if name else None
        if worker is None or not self._run.membership.knows(worker):
            return False
        if isinstance(message, messages.Hello):
            self._pids[worker] = message.pid
            self._gone_pids.discard(message.pid)  # it was fenced, and has come back
            self._beats.discard(worker)
        if isinstance(message, messages.Heartbeat):
            self._beats.add(worker)
        if not isinstance(message, _FROM_THE_AGENT):
            self._silence.spoke(worker, at_s)
        gone = worker in self._run.membership.missing
        return not gone or isinstance(message, _FROM_THE_GONE)

    # --- notices ---

    def on_started(self, started: messages.WorkerStarted, at_s: float) -> list[Effect]:
        worker = parse_worker(started.worker)
        if self._run.membership.phase(worker) is m.Phase.STARTING:
            self._pids[worker] = started.pid
        return []

    def on_not_started(self, told: messages.WorkerNotStarted, at_s: float) -> list[Effect]:
        """As if it had ended at once: whether it is tried again is decided in the same way."""
        worker, cause = parse_worker(told.worker), f"could not be started: {told.reason}"
        if self._run.phase in BEFORE_TRAINING:
            raise HoldfastError(
                f"worker {told.worker} {cause}; expected room for one more process. "
                f"All workers were stopped. {self._run.advice}"
            )
        if self._run.membership.phase(worker) is not m.Phase.STARTING:
            return []  # somebody else has come in its place
        return self._lose(m.ProcessExited(worker, at_s), cause)

    def on_exited(self, exited: messages.WorkerExited, at_s: float) -> list[Effect]:
        worker = parse_worker(exited.worker)
        if self._run.phase in BEFORE_TRAINING:
            return self._exited_early(exited)
        if self._pids.get(worker, exited.pid) != exited.pid:
            return []  # a process that somebody else has replaced
        said = self._note_death(worker, exited, at_s)
        if exited.pid not in self._gone_pids or worker not in self._pids:
            lost = self._lose(m.ProcessExited(worker, at_s), exited.how, explained=True)
            return [*lost, *said]
        self._losses.explain(worker, exited.how)
        return said

    def on_runs(self, runs: messages.WorkerRuns, at_s: float) -> list[Effect]:
        worker = parse_worker(runs.worker)
        if self._pids.get(worker) == runs.pid:
            self._silence.runs(worker, at_s)
        return []

    def _note_death(
        self, worker: WorkerId, exited: messages.WorkerExited, at_s: float
    ) -> list[Effect]:
        """A replacement that dies as the one before it did is the last one, or ends the run."""
        run = self._run
        stage = run.stages.get(worker, self._held.get(worker, worker.stage))
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

    def _exited_early(self, exited: messages.WorkerExited) -> list[Effect]:
        if exited.worker in self._complained:
            return []  # tick() ends the run if nobody says what became of the one it lost
        raise HoldfastError(
            f"worker {exited.worker} (pid {exited.pid}) ended with {exited.how} before training "
            f"started; all workers were stopped. {self._run.advice}"
        )

    def closed(self, worker: WorkerId, at_s: float) -> list[Effect]:
        if self._run.phase in BEFORE_TRAINING:
            return self._starting.suspect(str(worker), "closed its connection", at_s)
        return self._lose(m.ConnectionClosed(worker, at_s), "closed its connection")

    def on_peer_gone(self, gone: messages.PeerGone, at_s: float) -> list[Effect]:
        if gone.epoch != self._run.epoch and parse_worker(gone.worker) in self._run.stages:
            return []  # everyone was told to stop since
        if not gone.lost:
            return self._stuck(gone.worker, at_s)
        return self._complaint(gone.worker, gone.lost, at_s)

    def _stuck(self, by: str, at_s: float) -> list[Effect]:
        """Nobody is gone, yet nothing comes: all stop, and whoever does not is the one."""
        worker = parse_worker(by)
        if worker not in self._run.stages:
            try:
                return self._joining.copies.starves(worker, at_s)
            except ConfigError as why:
                return self.refuse(worker, str(why), at_s)
        change = self._changes.current
        if change is not None and not change.is_resuming:
            # Whoever does not stop will be found, unless all wait for a replay.
            return self._changes.again(at_s) if self._changes.note_stuck() else []
        if self._stuck_in == self._reports.next_step:
            self._give_up_step(by, at_s)
        self._stuck_in = self._reports.next_step
        return (
            self._changes.begin(ChangeRequest("stuck"), at_s)
            if change is None
            else self._changes.again(at_s)
        )

    def _give_up_step(self, by: str, at_s: float) -> None:
        """What is in memory is saved first; raises if there is nothing new, or that fails too."""
        run = self._run
        why = (
            f"worker {by} waited in vain for {run.clock.wait_s:g} s, and again after all had been "
            "stopped and started"
        )
        if run.ending.gives_up_step or self._reports.next_step <= run.start[1]:
            raise HoldfastError(f"{why}. {run.advice}")
        run.ending.ask_before_step(why, at_s)

    def on_failed(self, message: messages.Failed, at_s: float) -> list[Effect]:
        """It ends because of another worker, or it is a joiner, whose end harms nobody."""
        if not message.lost:
            return self.refuse(parse_worker(message.worker), message.reason, at_s)
        if self._run.phase not in BEFORE_TRAINING:
            return self._complaint(message.worker, message.lost, at_s)
        self._complained.add(message.worker)
        return self._starting.suspect(message.lost, f"was lost by {message.worker}", at_s)

    def _complaint(self, by: str, about: str, at_s: float) -> list[Effect]:
        """It is judged in a moment: whoever it is about may well live.

        About somebody who has left, or is not yet a member, it says nothing.
        """
        worker, complainer = parse_worker(about), parse_worker(by)
        if complainer not in self._run.stages:
            return self._joining.copies.complains(complainer, worker, at_s)
        if worker not in self._run.stages:
            return []
        self._links.complain(complainer, worker, self._run.epoch, at_s)
        return []

    def _mend_links(self, at_s: float) -> list[Effect]:
        """All stop and connect anew; whoever complains has stopped already."""
        run = self._run
        if run.phase is not RunPhase.TRAINING:
            return []
        judged = self._links.judge(at_s, run.epoch, run.stages, run.clock.wait_s)
        effects: list[Effect] = []
        for worker in judged.leave_out:
            others = {end for link in judged.mend if worker in link for end in link} - {worker}
            cause = f"no connection to {', '.join(map(str, sorted(others)))}, again and again"
            effects += self._lose(m.PeerComplained(worker, at_s), cause)
        if effects or not judged.mend:
            return effects
        change = self._changes.current
        if change is None:
            ends = sorted({end for link in judged.mend for end in link})
            return self._changes.begin(ChangeRequest("link", about=tuple(ends)), at_s)
        if not change.is_resuming and not self._changes.note_stuck():
            return []
        return self._changes.again(at_s, "link")

    def on_fault(self, fired: messages.FaultFired, at_s: float) -> list[Effect]:
        worker = parse_worker(fired.worker)
        is_news = self._run.assignments.fire(fired.fault)
        self._work.note(worker, self._run.epoch, fired.step, fired.done, fired.attempt)
        if fired.fault_kind in _DEADLY:
            self._fault_s[worker] = fired.at_s
            self._changes.fault_was(worker, fired.at_s)
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

    def is_joiner(self, name: str) -> bool:
        worker = parse_worker(name)
        joins = self._run.membership.phase(worker) in m.JOINING
        return (
            joins
            and self._run.phase not in BEFORE_TRAINING
            and worker not in self._run.placement.rolling_back
        )

    def refuse(self, worker: WorkerId, reason: str, at_s: float) -> list[Effect]:
        """A joiner that cannot take part is told why; its place stays free."""
        if worker in self._run.membership.missing:  # nobody had asked it
            self._run.membership.handle(m.Invited(worker, at_s))
        stop = Send(worker, messages.Stop(reason=reason))
        return [stop, *self._lose(m.GaveUp(worker, at_s), reason)]

    def gave_up(self, worker: WorkerId, reason: str, at_s: float) -> list[Effect]:
        """A member whose machine is out of something: lost as if it had died of it."""
        return self._lose(m.GaveUp(worker, at_s), reason, explained=True)

    # --- silence ---

    def tick(self, at_s: float) -> list[Effect]:
        clock = self._run.clock
        self._silence.forgive(at_s, clock.silence_s)
        effects = [*self._stalls(at_s), *self._silent(at_s)]
        for worker in self._changes.overdue(at_s, self._progress.busy()):
            cause = f"did not stop within {clock.answer_s:g} s"
            effects += self._lose(m.SilentTooLong(worker, at_s), cause)
        for worker in self._joining.admission.late(at_s):
            if worker in self._beats and self._changes.replays(worker):
                continue  # that may take long, and its silence would be noticed
            cause = f"not ready after workers.start_limit_s={clock.start_limit_s:g}"
            effects += self._lose(m.SilentTooLong(worker, at_s), cause)
        return effects + self._mend_links(at_s)

    def _stalls(self, at_s: float) -> list[Effect]:
        """Members that are in one operation for too long: named first, then lost."""
        for worker in self._progress.known() - self._run.stages.keys():
            self._progress.forget(worker)
        standing = self._silence.standing(at_s)
        mute = {w: seconds for w, seconds in standing.items() if self._is_judged(w)}
        look = self._progress.look(at_s, mute)
        effects: list[Effect] = [AskStack(stall.worker) for stall in look.ask]
        for stall in look.report:
            pid = self._run.hellos[stall.worker].pid
            effects.append(ReportStuck(stuck_event(stall, at_s), pid))
        for stall in look.lose:
            effects += self._lose(m.SilentTooLong(stall.worker, at_s), stuck_words(stall))
        return effects

    def _is_judged(self, worker: WorkerId) -> bool:
        """By the limits of its operations. A replay, a copy and a start have others."""
        return worker in self._progress.known() and not self._changes.replays(worker)

    def _silent(self, at_s: float) -> list[Effect]:
        clock, effects = self._run.clock, list[Effect]()
        standing = self._silence.standing(at_s)
        for worker in self._run.membership.live:
            silent_s = self._silence.of(worker, at_s)
            if not self._should_beat(worker):
                continue
            stood_s = 0.0 if self._is_judged(worker) else standing.get(worker, 0.0)
            if silent_s > clock.silence_s or stood_s > clock.start_limit_s:
                cause = f"no heartbeat for {max(silent_s, stood_s):.1f} s"
                effects += self._lose(m.SilentTooLong(worker, at_s), cause, silent=True)
            elif self._silence.is_look_due(worker, at_s, clock):
                effects.append(LookAt(worker))
        return effects

    def _should_beat(self, worker: WorkerId) -> bool:
        """From the first stage that it has built on."""
        has_built = (m.Phase.READY, m.Phase.COPYING, m.Phase.MEMBER)
        built = self._run.membership.phase(worker) in has_built
        return built or worker in self._beats

    # --- the loss itself ---

    def _lose(
        self, notice: m.Stimulus, cause: str, *, explained: bool = False, silent: bool = False
    ) -> list[Effect]:
        run, worker, at_s = self._run, notice.worker, notice.at_s
        commands = run.membership.handle(notice)
        if m.Command.FENCE not in commands:
            return []
        run.assignments.forget(worker)
        self._links.forget(worker)
        loss = Loss(worker, self._work.step_of(worker), cause, at_s, explained, silent)
        fence = Fence(worker)
        if m.Command.REPLAN in commands:
            self._losses.add(loss)
            stage = self._held[worker] = run.placement.release(worker)
            fault_s = self._fault_s.pop(worker, at_s)
            change = self._changes.lost(worker, stage, fault_s, at_s)
            return self._fenced([fence, *self._reports.fold(at_s), *change])
        self._joining.forget(worker)
        if worker in run.placement.rolling_back:
            self._losses.add(loss)
            return self._fenced([fence, *self._changes.forget(worker, at_s)])
        forgotten = self._changes.forget(worker, at_s)
        return self._fenced([fence, failed(worker, cause, at_s), *forgotten])

    def _fenced(self, effects: list[Effect]) -> list[Effect]:
        """The end of their processes, when it comes, is no news. A loss may have ended others."""
        gone = [effect.worker for effect in effects if isinstance(effect, Fence)]
        self._gone_pids |= {self._pids[worker] for worker in gone if worker in self._pids}
        return effects
