"""A change of who does what: stop, tell, decide, go. A death on the way starts it over.

Deaths, joins, moves and interrupts are all the same here. Who was lost, and whether a change is
wanted, is known elsewhere; what is to be done is decided in ``decision.py`` and done from here.
"""

from collections.abc import Mapping, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.decide.decision import (
    EndRun,
    ProceedDecision,
    Rebuild,
    RestoreCopy,
    Rollback,
    decide,
    roll_back,
)
from holdfast.control.decide.reconfiguration import (
    ChangeRequest,
    LostMember,
    Reconfiguration,
    ReconfigurationPhase,
)
from holdfast.control.decide.situation import Situations
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.join.restarting import Restarting
from holdfast.control.reconfigure.policies import RecoveryPolicy
from holdfast.control.reconfigure.proceeding import Proceeding
from holdfast.control.restore.rebuilding import CannotRebuild, HostsReady, Rebuilding, Waits
from holdfast.control.restore.rollback import RollingBack
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.protocol import messages


class Reconfigurations:
    def __init__(self, parts: RecoveryParts, policy: RecoveryPolicy) -> None:
        run, tracker, losses, plans, reports, joining = parts
        self._run, self._tracker, self._losses, self._plans = run, tracker, losses, plans
        self._reports, self._joining, self._policy = reports, joining, policy
        self._situations = Situations(run, plans, tracker, joining, policy)
        self.restarting = Restarting(run, reports, joining)
        self._rolling_back = RollingBack(parts, self.restarting, policy)
        self._rebuilding = Rebuilding(
            run, self._situations, reports, joining, self.restarting, policy
        )
        self._proceeding = Proceeding(parts, self._rebuilding)
        self._current: Reconfiguration | None = None

    @property
    def current(self) -> Reconfiguration | None:
        return self._current

    # --- stop ---

    def begin(self, wanted: ChangeRequest, at_s: float) -> list[Effect]:
        """A planned one; only while no other is under way."""
        assert self._current is None
        self._current = change = Reconfiguration(at_s, at_s)
        change.request(wanted)
        for worker in wanted.entering:
            self._joining.enters(worker)
        return self._halt(change, at_s)

    def again(self, at_s: float, cause: str = "stuck") -> list[Effect]:
        """All were told to go, but nothing comes: once more from the start."""
        assert self._current is not None
        self._current.add(cause)
        return self._halt(self._current, at_s)

    def lost(self, gone: Sequence[LostMember], at_s: float) -> list[Effect]:
        """Members are gone together. What was under way begins again without them, once."""
        first_s = min(member.fault_s for member in gone)
        self._current = change = self._current or Reconfiguration(at_s, first_s)
        for member in gone:
            change.lose(*member)
        # Who has not come back yet could not be told to stop.
        return [] if self._run.phase is RunPhase.REGAINING else self._halt_left(change, at_s)

    def _halt_left(self, change: Reconfiguration, at_s: float) -> list[Effect]:
        if not change.dead or not self._rolling_back.all_again:
            return self._halt(change, at_s)
        change.drop_requests()
        return [*self._rolling_back.end_all(at_s), *self._halt(change, at_s)]

    def fault_was(self, worker: WorkerId, fault_s: float) -> None:
        if self._current is not None:
            self._current.fault_was(worker, fault_s)

    def _halt(self, change: Reconfiguration, at_s: float) -> list[Effect]:
        epoch = self._run.placement.next_epoch()
        change.halt(at_s)
        halt = messages.Halt(epoch=epoch)
        halted = self._halted(change)
        # Whoever replays without being a member has nothing to tell, but must stop as well.
        guests = [worker for worker in self._rebuilding.guests() if worker not in halted]
        sends: list[Effect] = [Send(worker, halt) for worker in (*halted, *guests)]
        return sends if halted else sends + self._go(change, at_s)

    def _halted(self, change: Reconfiguration) -> list[WorkerId]:
        return sorted(self._run.stages.keys() | change.entering)

    def forget(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """A joiner is gone: nobody waits for it."""
        if self._run.phase is RunPhase.RETURNING:
            return self._rolled_back(self._rolling_back.lost(worker, at_s), at_s)
        if self._current is None:
            return []
        self._current.leave_out(worker)
        if self._rebuilding.lost(worker):
            return self._halt(self._current, at_s)  # the others of the crew wait for it
        return self.tick(at_s)

    # --- another coordinator has taken over ---

    def await_all(self, at_s: float) -> None:
        """All are to be asked what they have, as soon as they are back."""
        self._current = Reconfiguration(at_s, at_s)
        self._current.add("coordinator")

    def all_are_back(self, at_s: float, *, was_returning: bool) -> list[Effect]:
        """``was_returning``: nobody held a state any more that training could go on with."""
        change = self._current
        assert change is not None
        self._run.lifecycle.enter(RunPhase.TRAINING)
        if was_returning:
            return self._roll_back(change, Rollback("all were going back already"), at_s)
        return self._halt_left(change, at_s)

    # --- tell ---

    def on_inventory(self, inventory: messages.Inventory, at_s: float) -> list[Effect]:
        change, run = self._current, self._run
        worker = parse_worker(inventory.worker)
        if change is None or change.is_resuming or inventory.epoch != run.epoch:
            return []  # of a change that was begun anew since
        change.note_inventory(worker, inventory)
        self._tracker.note(worker, run.epoch, inventory.reduced, inventory.done, inventory.attempt)
        self._reports.note_kept(inventory.worker, inventory.kept_bytes)
        return self.tick(at_s)

    def tick(self, at_s: float) -> list[Effect]:
        """Go, as soon as all have told."""
        change = self._waiting
        if change is None or len(change.inventories) < len(self._run.stages):
            return []
        if not change.inventories.keys() >= set(self._halted(change)):
            return []
        return self._go(change, at_s)

    @property
    def awaits_inventories(self) -> bool:
        return self._waiting is not None

    @property
    def _waiting(self) -> Reconfiguration | None:
        """All have been told to stop, and there is no plan yet."""
        change = self._current
        if change is None or change.is_resuming or self._run.phase is not RunPhase.TRAINING:
            return None
        return change

    def overdue(self, at_s: float, busy: Mapping[WorkerId, float]) -> list[WorkerId]:
        """Those that live but have not stopped for far too long.

        ``busy``: in an operation that may take so many seconds. Whoever was in it when told to
        stop cannot answer before its end.
        """
        change = self._waiting
        if change is None:
            return []
        timeouts = self._run.timeouts
        # Whoever replays loads the job first, and hears nothing meanwhile.
        loads_s = timeouts.start_limit_s if self._run.logs.is_replaying else 0.0
        limit_s, since_s = max(timeouts.answer_s, loads_s), at_s - change.halted_s
        # Whoever has to wait until its part is on disk, before the next one, cannot stop either.
        # as it was told, early or late
        most_s = limit_s + max(timeouts.wait_s, timeouts.start_limit_s)
        saving = self._run.saved.saving if since_s <= most_s else set[WorkerId]()
        told = change.inventories
        missing = [w for w in self._halted(change) if w not in told and w not in saving]
        for worker in missing:
            if since_s <= busy.get(worker, 0.0):
                change.note_busy(worker, at_s)
        return [w for w in missing if at_s - change.busy_s.get(w, change.halted_s) > limit_s]

    # --- decide and go ---

    def _go(self, change: Reconfiguration, at_s: float) -> list[Effect]:
        """All have told. Called again whenever somebody has come a step further."""
        run = self._run
        if run.ending.gives_up_step:  # nobody begins a step that others have not ended
            furthest = [change.inventories[worker].reduced for worker in run.stages]
            run.ending.shorten(max(furthest, default=run.ending.end_step))
        for worker, stage in change.dead:  # a replacement will come under the same name
            change.note_lost_work(worker, self._tracker.dead(worker, stage))
        situation = self._situations.of(change, self._rebuilding.facts())
        match decide(change.inventories, situation, self._policy.after_loss):
            case EndRun():
                raise run.ended_early()
            case ProceedDecision() as decision:
                return self._proceeding.go_on(change, decision, at_s)
            case Rebuild() as decision:
                return self._rebuild(change, decision, at_s)
            case RestoreCopy() as decision:
                restored = self._policy.restore(change, decision, at_s)
                return [*self._losses.show(at_s), *restored]
            case Rollback() as decision:
                return self._roll_back(change, decision, at_s)

    def _rebuild(self, change: Reconfiguration, decision: Rebuild, at_s: float) -> list[Effect]:
        match self._rebuilding.go_on(change, decision, at_s):
            case CannotRebuild(effects, reason):
                situation = self._situations.of(change, None)
                return effects + self._roll_back(change, roll_back(situation, reason), at_s)
            case HostsReady(effects, hosts):
                change.let_in(hosts)
                for host in hosts:
                    self._joining.enters(host)
                return effects + self._halt(change, at_s)
            case Waits(effects):
                change.enter(ReconfigurationPhase.REBUILDING)
                return effects

    def _roll_back(self, change: Reconfiguration, decision: Rollback, at_s: float) -> list[Effect]:
        freed = self._rebuilding.free_hosts(at_s)
        live = self._run.membership.live
        crew = [worker for worker in self._rebuilding.crew if worker in live]
        before = self._reports.next_step
        back = self._rolling_back.begin(change.dead, decision, at_s)
        if not back:  # it is not clear yet who can help
            change.enter(ReconfigurationPhase.STRANDED)
            return freed
        change.enter(ReconfigurationPhase.ROLLING_BACK)
        change.throw_away(max(0, before - self._run.start[1]))
        if crew:  # they are to stop before they build
            halt = messages.Halt(epoch=self._run.epoch)
            freed = [*(Send(worker, halt) for worker in crew), *freed]
        return [*freed, *back, *self._rebuilding.forget()]

    # --- while a stage is computed again ---

    def on_replayed(self, replayed: messages.Replayed, at_s: float) -> list[Effect]:
        return [*self._rebuilding.on_replayed(replayed, at_s), *self.tick(at_s)]

    def on_replay_failed(self, failed: messages.ReplayFailed, at_s: float) -> list[Effect]:
        if not self._rebuilding.on_failed(failed):
            return []
        assert self._current is not None
        return self._halt(self._current, at_s)

    def replays(self, worker: WorkerId) -> bool:
        return self._rebuilding.replays(worker)

    def note_stuck(self) -> bool:
        """A wait ran out. Whether it was in a replay: then it is begun again, or given up."""
        return self._rebuilding.note_stuck()

    # --- while all build anew ---

    def on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect] | None:
        """None: it is not needed for that."""
        is_needed = self._run.phase is RunPhase.RETURNING and self._rolling_back.is_short
        return self._rolling_back.on_hello(hello, at_s) if is_needed else None

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        return self._rolled_back(self._rolling_back.on_ready(worker, at_s), at_s)

    def _rolled_back(self, effects: list[Effect], at_s: float) -> list[Effect]:
        change, run = self._current, self._run
        if change is not None and run.phase is RunPhase.TRAINING:
            now_s = run.settings.now(at_s)
            change.resume(self._reports.next_step, redone=0, operations=0, at_s=now_s)
        return effects

    # --- everyone takes up work again ---

    def on_resumed(self, worker: WorkerId, resumed_s: float, at_s: float) -> list[Effect]:
        change, run = self._current, self._run
        if change is None or not change.is_resuming:
            return []
        change.note_resumed(worker, resumed_s)
        if not run.stages.keys() <= change.resumed_s.keys():
            return []
        self._current = None
        last_s = change.complete()
        run.times.note_stop(last_s - change.notice_s)
        return [*self._losses.show(at_s, all_of_them=True), Emit(_recovered(run, change, last_s))]


def _recovered(run: Run, change: Reconfiguration, last_s: float) -> events.Recovered:
    return events.Recovered(
        at_s=last_s,
        epoch=run.epoch,
        step=change.step,
        cause=" and ".join(change.causes),
        workers=tuple(map(str, change.workers)),
        fault_s=change.fault_s,
        notice_s=change.notice_s,
        plan_s=change.plan_s,
        resumed_s=last_s,
        redone=change.redone,
        operations=change.operations,
        members=len(run.stages),
        period_s=run.plan.steady.period_s,
        reason=run.plan.steady.reason,
        thrown_away=change.thrown_away,
        num_lost=change.num_lost,
    )
