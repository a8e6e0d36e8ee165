"""Passes each message on to the parts that know what it means. Decides nothing itself."""

from collections.abc import Callable
from typing import Any

from holdfast.cluster import parse_worker
from holdfast.control.agenda import Agenda
from holdfast.control.effects import Effect, Emit
from holdfast.control.finish import Finish
from holdfast.control.heartbeats import Heartbeats
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.lifecycle import BEFORE_TRAINING, RunPhase
from holdfast.control.state.run import Run
from holdfast.control.takeover.regaining import Regaining
from holdfast.errors import ConfigError, HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages

_MOST_WARNINGS, _MOST_OF_A_WARNING = 50, 300

Handler = Callable[[Any, float], list[Effect]]


class Handlers:
    def __init__(
        self,
        run: Run,
        parts: CoordinatorParts,
        agenda: Agenda,
        finish: Finish,
        regaining: Regaining,
    ) -> None:
        self._run, self._parts, self._agenda, self._finish = run, parts, agenda, finish
        self._regaining = regaining
        self.heartbeats = Heartbeats(run, parts)
        self._warned: set[str] = set()

    def table(self) -> dict[type[messages.Message], Handler]:
        parts = self._parts
        checkpoints = parts.reports.checkpoints
        return {
            messages.Hello: self._on_hello,
            messages.Reattach: self._regaining.on_reattach,
            messages.LayerCosts: lambda costs, at_s: parts.starting.on_costs(costs),
            messages.Ready: self._on_ready,
            messages.Heartbeat: self.heartbeats.on_heartbeat,
            messages.PeerGone: parts.complaints.on_peer_gone,
            messages.Inventory: parts.reconfigurations.on_inventory,
            messages.Resumed: self._on_resumed,
            messages.Replayed: parts.reconfigurations.on_replayed,
            messages.ReplayFailed: parts.reconfigurations.on_replay_failed,
            messages.LogVolume: parts.log_policy.on_volume,
            messages.LogState: parts.log_policy.on_state,
            messages.Copied: self._on_copied,
            messages.FaultReport: parts.notices.on_fault,
            messages.StepReport: self._on_report,
            messages.Scores: parts.reports.on_scores,
            messages.Probed: self._on_probed,
            messages.Offered: self._on_offered,
            messages.CheckpointPart: self._on_part,
            messages.PartFailed: self._on_part_failed,
            messages.StateHashes: lambda told, at_s: checkpoints.on_hashes(told),
            messages.Finished: self._on_finished,
            messages.WorkerStarted: self._on_started,
            messages.WorkerNotStarted: parts.notices.on_not_started,
            messages.WorkerExited: parts.notices.on_exited,
            messages.WorkerRuns: parts.notices.on_runs,
            messages.JobFailed: self._on_job_failed,
            messages.WorkerWarning: self._on_warned,
            messages.Failed: self._on_failed,
        }

    # --- coming ---

    def _on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect]:
        parts = self._parts
        if self._run.phase in BEFORE_TRAINING:
            return parts.starting.on_hello(hello, at_s)
        try:
            needed = parts.reconfigurations.on_hello(hello, at_s)
            if needed is not None:
                return needed
            return parts.joining.on_hello(hello, parts.reports.steps_left, at_s)
        except ConfigError as why:
            return parts.losing.refuse(parse_worker(hello.worker), str(why), at_s)

    def _on_ready(self, ready: messages.Ready, at_s: float) -> list[Effect]:
        run, parts, worker = self._run, self._parts, parse_worker(ready.worker)
        if not run.assignments.built(worker):
            return []  # it was given another stage, or another state, meanwhile
        if run.phase is RunPhase.REGAINING:
            return self._regaining.on_ready(worker, at_s)
        if run.phase is RunPhase.RETURNING:
            return parts.reconfigurations.on_ready(worker, at_s)
        if run.phase not in BEFORE_TRAINING:
            return parts.joining.on_ready(worker, at_s)
        effects = parts.starting.on_ready(worker, at_s)
        if run.phase is RunPhase.TRAINING:
            parts.reports.begin(run.start[1], at_s)
            parts.plans.look_ahead()
        return effects

    def _on_copied(self, copied: messages.Copied, at_s: float) -> list[Effect]:
        self._parts.joining.copies.on_copied(copied, at_s)
        return []

    def _on_started(self, started: messages.WorkerStarted, at_s: float) -> list[Effect]:
        self._parts.replacing.on_started(parse_worker(started.worker), started.pid)
        return self._parts.notices.on_started(started, at_s)

    # --- training ---

    def _on_resumed(self, resumed: messages.Resumed, at_s: float) -> list[Effect]:
        if resumed.epoch != self._run.epoch:
            return []
        worker = parse_worker(resumed.worker)
        return self._completed(self._parts.reconfigurations.on_resumed(worker, resumed.at_s, at_s))

    def _completed(self, effects: list[Effect]) -> list[Effect]:
        """If a change is: perhaps somebody should now hold another stage."""
        if effects:
            self._parts.moving.members_changed()
            self._parts.mitigating.members_changed()
            self._parts.plans.look_ahead()
        return effects

    def _on_report(self, report: messages.StepReport, at_s: float) -> list[Effect]:
        reports = self._parts.reports
        worker = parse_worker(report.worker)
        if reports.has_told(worker, report.step):
            return []  # told again, in case that it had not come
        self._parts.tracker.note(worker, self._run.epoch, report.step + 1, 0)
        self._parts.straggler_monitor.on_report(report, at_s)
        first = reports.next_step
        effects = reports.on_step(report, at_s)
        for step in range(first, reports.next_step):
            effects += self._watch(step, at_s)
        return effects

    def _watch(self, step: int, at_s: float) -> list[Effect]:
        """Nobody trains worse for it if watching fails."""
        monitor, mitigating = self._parts.straggler_monitor, self._parts.mitigating
        steps_s, left = self._run.times.steps_s, self._parts.reports.steps_left
        try:
            effects = monitor.concluded(step, at_s)
            if self._agenda.is_quiet and steps_s:
                effects += mitigating.note_step(step, left, steps_s[-1], at_s)
        except (HoldfastError, ArithmeticError, ValueError) as why:
            monitor.stop()
            return mitigating.stop(str(why), step, at_s)
        return effects

    def _on_offered(self, offered: messages.Offered, at_s: float) -> list[Effect]:
        effects = self._parts.switching.on_offered(offered, at_s)
        if effects:
            self._parts.plans.look_ahead()
        return effects

    def _on_probed(self, probed: messages.Probed, at_s: float) -> list[Effect]:
        self._parts.straggler_monitor.on_probed(probed)
        return []

    def _on_part(self, part: messages.CheckpointPart, at_s: float) -> list[Effect]:
        self._parts.recovery_policy.on_part(part)
        self._parts.deadline.note_part(part)
        return self._parts.reports.checkpoints.on_part(part)

    def _on_part_failed(self, failed: messages.PartFailed, at_s: float) -> list[Effect]:
        reports = self._parts.reports
        return reports.checkpoints.on_failed(failed, reports.next_step, at_s)

    def _on_finished(self, finished: messages.Finished, at_s: float) -> list[Effect]:
        self._parts.reports.on_finished(finished)
        worker = parse_worker(finished.worker)
        return self._completed(self._parts.reconfigurations.on_resumed(worker, at_s, at_s))

    # --- trouble ---

    def _on_job_failed(self, failed: messages.JobFailed, at_s: float) -> list[Effect]:
        """The step before it is whole everywhere, and saved; if it is saved already, all ends."""
        run, reconfigurations = self._run, self._parts.reconfigurations
        if failed.epoch != run.epoch:
            return []  # all were told to stop since; it tries again, or somebody else does
        kind, why = _told(failed)
        if failed.step <= run.start[1]:
            return self._finish.fail(kind(run.with_advice(why)), at_s, failed.details)
        run.ending.ask_with(failed.step, why, failed.details, at_s)
        change = reconfigurations.current
        return [] if change is None or not change.is_resuming else reconfigurations.again(at_s)

    def _on_warned(self, warned: messages.WorkerWarning, at_s: float) -> list[Effect]:
        """Every worker that has loaded the job says the same."""
        reason = " ".join(warned.reason.split())[:_MOST_OF_A_WARNING]
        if reason in self._warned or len(self._warned) >= _MOST_WARNINGS:
            return []
        self._warned.add(reason)
        return [Emit(events.Warned(at_s=at_s, reason=reason))]

    def _on_failed(self, failed: messages.Failed, at_s: float) -> list[Effect]:
        run, notices = self._run, self._parts.notices
        if failed.lost or notices.is_joiner(failed.worker):
            return notices.on_failed(failed, at_s)
        if failed.scarce and run.phase not in BEFORE_TRAINING:
            return self._parts.losing.gave_up(parse_worker(failed.worker), failed.reason, at_s)
        kind, why = _told(failed)
        return self._finish.fail(kind(run.with_advice(why)), at_s, failed.details)


def _told(failed: messages.Failed | messages.JobFailed) -> tuple[type[HoldfastError], str]:
    """What the user has done is said without the worker that found it."""
    if failed.exit_code == ConfigError.exit_code:
        return ConfigError, failed.reason
    return HoldfastError, f"worker {failed.worker}: {failed.reason}"
