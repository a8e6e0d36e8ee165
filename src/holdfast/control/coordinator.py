"""What the run does next. Pure: messages in, effects out; ``server.py`` does the talking.

Passes each message on to the part that knows what it means, and decides, whenever nothing else
is under way, which change comes next.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control import membership as m
from holdfast.control.checks import NOTHING, Accepted
from holdfast.control.deadline import Deadline
from holdfast.control.effects import (
    Effect,
    Emit,
    SealCheckpoint,
    Send,
)
from holdfast.control.joiner import Joiner
from holdfast.control.joining import Joining
from holdfast.control.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.log_policy import LogPolicy
from holdfast.control.losses import Losses, Work
from holdfast.control.mitigating import Mitigating
from holdfast.control.moving import Moving, Order
from holdfast.control.notices import Notices
from holdfast.control.plans import Plans, SomePlanner
from holdfast.control.plausible import Plausible
from holdfast.control.progress import Progress
from holdfast.control.reconfiguration import ChangeRequest
from holdfast.control.reconfiguring import Reconfigurations
from holdfast.control.replacing import Replacing
from holdfast.control.reports import Reports
from holdfast.control.run import Run
from holdfast.control.save_interval import SaveInterval
from holdfast.control.settings import Settings, resume_call
from holdfast.control.slowness import Slowness
from holdfast.control.starting import Starting
from holdfast.control.switching import Switching
from holdfast.errors import ConfigError, HoldfastError, Implausible
from holdfast.faults.fault import Fault
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.recovery.manifest import Checkpoint
from holdfast.schedule.schedule import Schedule

_MOST_WARNINGS, _MOST_OF_A_WARNING = 50, 300


class Coordinator:
    """Change it only through its public methods; each returns what is to be done."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: str,
        resume: Checkpoint | None,
        *,
        planner: SomePlanner | None = None,
        faults: Sequence[Fault] = (),
        address: str = "",
        join_with: str = "",
        resume_with: Callable[[str], str] = resume_call,
        schedule: Schedule | None = None,
        now: Callable[[], float] | None = None,
        run_id: str = "",
        accepted: Accepted = NOTHING,
    ) -> None:
        settings = Settings(
            config,
            run_dir,
            resume,
            faults,
            address,
            schedule,
            now,
            run_id,
            join_with,
            accepted,
            resume_with,
        )
        self.run = run = Run.of(settings)
        self._warned: set[str] = set()
        work, losses = Work(), Losses()
        self._plans = Plans(run, planner)
        self.reports = Reports(run)
        self._checkpoints = self.reports.checkpoints
        self._starting = Starting(run, work)
        self._joining = Joining(run, work, self._plans)
        self._changes = Reconfigurations(
            run, work, losses, self._plans, self.reports, self._joining
        )
        self._replacing = Replacing(run, self.reports, self._joining)
        self._progress = Progress(config.workers.stuck_limit_s, config.workers.start_limit_s)
        self._notices = Notices(
            run,
            work,
            losses,
            self._starting,
            self._joining,
            self._changes,
            self.reports,
            self._replacing,
            self._progress,
        )
        self._log_policy = LogPolicy(run, self.reports)
        self._deadline = Deadline(run)
        self._save_interval = SaveInterval(run, self.reports)
        self._losses, self._work = losses, work
        self._switching = Switching(run, work)
        self._slowness, self._mitigating = Slowness(run), Mitigating(run, self._plans)
        self._moving = Moving(run, self._plans, work, self._switching)
        self._plausible = Plausible(run)
        self._broken_by: dict[type, str] = {}  # kind of message -> worker
        self._handlers: dict[type, Callable[[Any, float], list[Effect]]] = {
            messages.Hello: self._on_hello,
            messages.LayerCosts: lambda costs, at_s: self._starting.on_costs(costs),
            messages.Ready: self._on_ready,
            messages.Heartbeat: self._on_heartbeat,
            messages.PeerGone: self._notices.on_peer_gone,
            messages.Tell: self._changes.on_tell,
            messages.Resumed: self._on_resumed,
            messages.Replayed: self._changes.on_replayed,
            messages.ReplayFailed: self._changes.on_replay_failed,
            messages.LogVolume: self._log_policy.on_volume,
            messages.LogState: self._log_policy.on_state,
            messages.Copied: self._on_copied,
            messages.FaultFired: self._notices.on_fault,
            messages.StepReport: self._on_report,
            messages.Probed: self._on_probed,
            messages.Offered: self._on_offered,
            messages.CheckpointPart: self._on_part,
            messages.PartFailed: self._on_part_failed,
            messages.StateHashes: lambda told, at_s: self._checkpoints.on_hashes(told),
            messages.Finished: self._on_finished,
            messages.WorkerStarted: self._on_started,
            messages.WorkerNotStarted: self._notices.on_not_started,
            messages.WorkerExited: self._notices.on_exited,
            messages.WorkerRuns: self._notices.on_runs,
            messages.JobFailed: self._on_job_failed,
            messages.Warned: self._on_warned,
            messages.Failed: self._on_failed,
        }

    # --- what the server asks ---

    @property
    def workers(self) -> list[WorkerId]:
        """Those to be started with the run."""
        return sorted(self.run.first_stages)

    @property
    def phase(self) -> RunPhase:
        return self.run.phase

    @property
    def failure(self) -> HoldfastError | None:
        return self.run.ending.failure

    @property
    def details(self) -> str:
        return self.run.ending.details

    @property
    def over(self) -> bool:
        return self.run.life.over

    @property
    def starting(self) -> bool:
        return self.run.phase in BEFORE_TRAINING

    def waiting_for(self) -> str:
        return self._starting.waiting_for()

    def grant(self, request: messages.JoinRequest, job_sha256: str, at_s: float) -> WorkerId:
        """The place of somebody who wants to join; ConfigError if there is none for it."""
        return self._joining.admission.grant(request, job_sha256, at_s)

    def knows(self, name: str) -> bool:
        return any(name == str(worker) for worker in self.run.membership.all_in(*m.Phase))

    def accepts(self, name: str) -> bool:
        """Whether a hello under this name is welcome: nobody takes the place of the living."""
        free = self.run.membership.all_in(m.Phase.STARTING, *(() if self.starting else m.MISSING))
        return any(name == str(worker) for worker in free)

    def close(self) -> None:
        """Leave no thread behind."""
        self._plans.close()

    # --- what happens ---

    def handle(self, message: messages.Message, at_s: float) -> list[Effect]:
        """Implausible: whoever has said this is not to be listened to any more."""
        handler = self._handlers.get(type(message))
        if handler is None:
            why = HoldfastError(f"unexpected {type(message).__name__} while {self.phase.name}")
            return self.fail(why, at_s)
        if self.run.life.over:
            return []
        self._plausible.check(message)
        return self._guarded(lambda: self._heard(message, handler, at_s), at_s)

    def _heard(
        self,
        message: messages.Message,
        handler: Callable[[Any, float], list[Effect]],
        at_s: float,
    ) -> list[Effect]:
        if not self._notices.hear(message, at_s):
            return []
        try:
            return handler(message, at_s)
        except HoldfastError:
            raise
        except Exception as why:
            # If others say the like and it breaks again, it is no lie of theirs but our mistake.
            kind, worker = type(message), str(getattr(message, "worker", ""))
            if self._broken_by.setdefault(kind, worker) != worker:
                raise
            raise Implausible(f"{kind.__name__} cannot be acted on: {why!r}") from why

    def lost_connection(self, worker: str, at_s: float) -> list[Effect]:
        return self._guarded(lambda: self._notices.closed(parse_worker(worker), at_s), at_s)

    def tick(self, at_s: float) -> list[Effect]:
        return self._guarded(lambda: self._on_tick(at_s), at_s)

    def sealed(self, step: int, at_s: float) -> list[Effect]:
        """A checkpoint is on disk, whole."""

        def done() -> list[Effect]:
            return [
                *self._checkpoints.on_sealed(step),
                *self._save_interval.on_sealed(step, at_s),
            ]

        return self._guarded(done, at_s)

    def seal_failed(self, seal: SealCheckpoint, reason: str, at_s: float) -> list[Effect]:
        return self._guarded(lambda: self._checkpoints.on_seal_failed(seal, reason, at_s), at_s)

    def interrupt(self, at_s: float) -> list[Effect]:
        """The first one ends the run at the next step, with a checkpoint; the second at once."""
        run = self.run
        if run.phase is RunPhase.TRAINING and not run.ending.is_early:
            run.ending.ask("interrupted", at_s)
            return self._guarded(lambda: [Emit(events.Interrupted(at_s=at_s))], at_s)
        return self.fail(run.ended_early(), at_s)

    def fail(self, why: HoldfastError, at_s: float, details: str = "") -> list[Effect]:
        """End the run: tell everyone, once."""
        run = self.run
        if run.life.over:
            return []
        effects: list[Effect] = []
        if run.phase not in BEFORE_TRAINING:
            effects += self._losses.show(at_s, all_of_them=True)
            effects += self._joining.unfinished(at_s)
            effects.append(Emit(events.RunFailed(at_s=at_s, reason=str(why))))
        run.life.enter(RunPhase.FAILED)
        run.ending.fail(why, details)
        return effects + self._stop_all(str(why), at_s)

    def _guarded(self, act: Callable[[], list[Effect]], at_s: float) -> list[Effect]:
        """What goes wrong ends the run; whatever happened, the next change may be due."""
        if self.run.life.over:
            return []
        effects: list[Effect] = []
        try:
            effects += act()
            effects += self._checkpoints.whole(at_s)
            effects += self._next(at_s)
        except Implausible:
            raise
        except HoldfastError as why:
            effects += self.fail(why, at_s)
        except Exception as why:  # a mistake of ours must not leave workers behind
            broken = HoldfastError(f"the coordinator failed: {why!r}. {self.run.advice}")
            effects += self.fail(broken, at_s, traceback.format_exc())
        return effects

    def _stop_all(self, reason: str, at_s: float) -> list[Effect]:
        live = self.run.membership.live
        for worker in live:
            self.run.membership.handle(m.Ended(worker, at_s))
        return [Send(worker, messages.Stop(reason=reason)) for worker in live]

    # --- messages ---

    def _on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect]:
        if self.run.phase in BEFORE_TRAINING:
            return self._starting.on_hello(hello, at_s)
        try:
            needed = self._changes.on_hello(hello, at_s)
            if needed is not None:
                return needed
            return self._joining.on_hello(hello, self.reports.steps_left, at_s)
        except ConfigError as why:
            return self._notices.refuse(parse_worker(hello.worker), str(why), at_s)

    def _on_ready(self, ready: messages.Ready, at_s: float) -> list[Effect]:
        worker = parse_worker(ready.worker)
        if not self.run.assignments.built(worker):
            return []  # it was given another stage, or another state, meanwhile
        if self.run.phase is RunPhase.RETURNING:
            return self._changes.on_ready(worker, at_s)
        if not self.starting:
            return self._joining.on_ready(worker, at_s)
        effects = self._starting.on_ready(worker, at_s)
        if not self.starting:
            self.reports.begin(self.run.start[1], at_s)
            self._plans.look_ahead()
        return effects

    def _on_heartbeat(self, beat: messages.Heartbeat, at_s: float) -> list[Effect]:
        worker = parse_worker(beat.worker)
        self._work.note(worker, beat.epoch, beat.step, beat.done, beat.attempt)
        self._deadline.note_beat(worker, beat)
        if worker in self.run.stages:
            self._progress.note(worker, self.run.stages[worker], beat)
        return []

    def _on_resumed(self, resumed: messages.Resumed, at_s: float) -> list[Effect]:
        if resumed.epoch != self.run.epoch:
            return []
        worker = parse_worker(resumed.worker)
        return self._settled(self._changes.on_resumed(worker, resumed.at_s, at_s))

    def _settled(self, effects: list[Effect]) -> list[Effect]:
        """A change is complete: perhaps somebody should now hold another stage."""
        if effects:
            self._moving.members_changed()
            self._mitigating.wanted = None  # lanes for the members before
            self._plans.look_ahead()
        return effects

    def _on_copied(self, copied: messages.Copied, at_s: float) -> list[Effect]:
        self._joining.copies.on_copied(copied, at_s)
        return []

    def _on_report(self, report: messages.StepReport, at_s: float) -> list[Effect]:
        self._work.note(parse_worker(report.worker), self.run.epoch, report.step + 1, 0)
        self._slowness.on_report(report)
        first = self.reports.next_step
        effects = self.reports.on_step(report, at_s)
        for step in range(first, self.reports.next_step):
            effects += self._watch(step, at_s)
        return effects

    def _watch(self, step: int, at_s: float) -> list[Effect]:
        """Nobody trains worse for it if watching fails."""
        try:
            effects = self._slowness.concluded(step, at_s)
            if self._quiet and self.run.times.steps_s:
                took_s, left = self.run.times.steps_s[-1], self.reports.steps_left
                effects += self._mitigating.note_step(step, left, took_s, at_s)
        except (HoldfastError, ArithmeticError, ValueError) as why:
            self._slowness.stop()
            return self._mitigating.stop(str(why), step, at_s)
        return effects

    def _on_offered(self, offered: messages.Offered, at_s: float) -> list[Effect]:
        effects = self._switching.on_offered(offered, at_s)
        if effects:
            self._plans.look_ahead()
        return effects

    def _on_probed(self, probed: messages.Probed, at_s: float) -> list[Effect]:
        self._slowness.on_probed(probed)
        return []

    def _on_part(self, part: messages.CheckpointPart, at_s: float) -> list[Effect]:
        self._save_interval.on_part(part)
        self._deadline.note_part(part)
        return self._checkpoints.on_part(part)

    def _on_part_failed(self, failed: messages.PartFailed, at_s: float) -> list[Effect]:
        return self._checkpoints.on_failed(failed, self.reports.next_step, at_s)

    def _on_finished(self, finished: messages.Finished, at_s: float) -> list[Effect]:
        self.reports.on_finished(finished)
        resumed = self._changes.on_resumed(parse_worker(finished.worker), at_s, at_s)
        return self._settled(resumed)

    def _on_started(self, started: messages.WorkerStarted, at_s: float) -> list[Effect]:
        self._replacing.on_started(parse_worker(started.worker), started.pid)
        return self._notices.on_started(started, at_s)

    def _on_job_failed(self, failed: messages.JobFailed, at_s: float) -> list[Effect]:
        """The step before it is whole everywhere, and saved; if it is saved already, all ends."""
        run = self.run
        if failed.epoch != run.epoch:
            return []  # all were told to stop since; it tries again, or somebody else does
        kind, why = _told(failed)
        if failed.step <= run.start[1]:
            return self.fail(kind(run.with_advice(why)), at_s, failed.details)
        run.ending.ask_with(failed.step, why, failed.details, at_s)
        change = self._changes.current
        return [] if change is None or not change.is_resuming else self._changes.again(at_s)

    def _on_warned(self, warned: messages.Warned, at_s: float) -> list[Effect]:
        """Every worker that has loaded the job says the same."""
        reason = " ".join(warned.reason.split())[:_MOST_OF_A_WARNING]
        if reason in self._warned or len(self._warned) >= _MOST_WARNINGS:
            return []
        self._warned.add(reason)
        return [Emit(events.Warned(at_s=at_s, reason=reason))]

    def _on_failed(self, failed: messages.Failed, at_s: float) -> list[Effect]:
        if failed.lost or self._notices.is_joiner(failed.worker):
            return self._notices.on_failed(failed, at_s)
        if failed.scarce and not self.starting:
            return self._notices.gave_up(parse_worker(failed.worker), failed.reason, at_s)
        kind, why = _told(failed)
        return self.fail(kind(self.run.with_advice(why)), at_s, failed.details)

    # --- what comes next ---

    def _on_tick(self, at_s: float) -> list[Effect]:
        if self.starting:
            self._starting.tick(at_s)
            return []
        if self._deadline.is_over(at_s):
            raise self.run.ended_early()
        if self._quiet and not self._ending:
            return [*self._look(at_s), *self._replacing.due(at_s), *self._try_better(at_s)]
        return self._look(at_s)

    def _look(self, at_s: float) -> list[Effect]:
        return [
            *self._checkpoints.tick(at_s),
            *self._notices.tick(at_s),
            *self._changes.tick(at_s),
            *self._losses.show(at_s),
        ]

    @property
    def _quiet(self) -> bool:
        """Nothing is under way, nor offered."""
        busy = self._changes.current is not None or self._switching.under_way
        return self.run.phase is RunPhase.TRAINING and not busy

    def _next(self, at_s: float) -> list[Effect]:
        if self.run.phase is not RunPhase.TRAINING:
            return []
        if why := self.reports.nonfinite.reason:
            self.run.ending.ask(why, at_s)
        ordered = (
            [] if self._ending else self._joining.admission.ordered(self.reports.next_step, at_s)
        )
        if not self._quiet:
            return ordered
        if self.reports.all_finished:
            return ordered + self._end(at_s)
        if self.run.ending.is_undecided:
            return ordered + self._changes.begin(ChangeRequest("interrupt"), at_s)
        if self._ending:
            return ordered
        return ordered + (self._enter(at_s) or self._move(at_s) or self._mitigate(at_s))

    @property
    def _ending(self) -> bool:
        """Nothing new is begun any more."""
        return self.run.ending.is_early or bool(self.reports.finished)

    def _end(self, at_s: float) -> list[Effect]:
        if self._checkpoints.is_pending():
            return []
        finished = self.reports.run_finished(at_s)  # raises if replicas disagree
        self._checkpoints.check_end()
        if self.run.ending.is_early:
            raise self.run.ended_early()
        self.reports.nonfinite.check_end(self.run.advice)
        unfinished = self._joining.unfinished(at_s)
        self.run.life.enter(RunPhase.FINISHED)
        return [*unfinished, Emit(finished), *self._stop_all("the run is finished", at_s)]

    def _enter(self, at_s: float) -> list[Effect]:
        entering = tuple(self._joining.caught_up(at_s))
        if not entering:
            return []
        moved = all(self._joining.joiners[w].from_stage is not None for w in entering)
        return self._changes.begin(
            ChangeRequest("move" if moved else "join", entering=entering), at_s
        )

    def _move(self, at_s: float) -> list[Effect]:
        """Only while nobody else is on the way."""
        if self._moving.under_way:
            return self._leave(self._moving.leaving(), at_s)
        if self._joining.under_way:
            return []
        return self._moving.next(self.reports.steps_left, at_s)

    def _leave(self, orders: Sequence[Order], at_s: float) -> list[Effect]:
        joiners = []
        for worker, stage, reason in orders:
            if stage is None:
                self._replacing.leave_out(worker)
                return self._notices.refuse(worker, "it was too slow and is left out", at_s)
            joiners.append((worker, Joiner(stage, self.run.stages[worker], reason)))
        return (
            self._changes.begin(ChangeRequest("move", leaving=tuple(joiners)), at_s)
            if joiners
            else []
        )

    def _mitigate(self, at_s: float) -> list[Effect]:
        """Something is slow, or is so no longer, and it pays to change who does what."""
        if self._mitigating.wanted is None or self._moving.is_wanted:
            return []
        if self._joining.under_way:
            return []
        remedy, effects = self._mitigating.take(self.reports.next_step, at_s)
        option = remedy.option
        if remedy.steady is not None:
            switch = self._switching.begin(remedy.steady, option.action.value, at_s)
            return effects + switch
        self._moving.order(Order(worker, stage, option.what) for worker, stage in remedy.moves)
        if remedy.drops is not None:
            self._moving.order([Order(remedy.drops, None, option.what)])
        return effects + self._move(at_s)

    def _try_better(self, at_s: float) -> list[Effect]:
        if not self._quiet or self._joining.under_way:
            return []
        better = self._plans.better(self.reports.steps_left)
        return self._switching.begin(better, "better plan", at_s) if better else []


def _told(failed: messages.Failed | messages.JobFailed) -> tuple[type[HoldfastError], str]:
    """What the user has done is said without the worker that found it."""
    if failed.exit_code == ConfigError.exit_code:
        return ConfigError, failed.reason
    return HoldfastError, f"worker {failed.worker}: {failed.reason}"
