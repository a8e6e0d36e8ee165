"""A change of who does what: stop, tell, plan, go. A death on the way starts it over.

Deaths, joins, moves and interrupts are all the same here. Who was lost, and
whether a change is wanted, is decided elsewhere.
"""

from collections.abc import Mapping

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control import membership as m
from holdfast.control.committing import NO_COPY, Committing
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.joining import Joining
from holdfast.control.lifecycle import RunPhase
from holdfast.control.losses import Losses, Work
from holdfast.control.plans import Plans
from holdfast.control.rebuilding import Rebuilding
from holdfast.control.recovery import Rests, rests
from holdfast.control.reports import Reports
from holdfast.control.restarting import Restarting
from holdfast.control.returning import Returning
from holdfast.control.run import Run
from holdfast.control.wish import Change, Wish
from holdfast.errors import ScheduleError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.half_done import to_record


class Changes:
    def __init__(
        self,
        run: Run,
        work: Work,
        losses: Losses,
        plans: Plans,
        reports: Reports,
        joining: Joining,
    ) -> None:
        self._run, self._work, self._losses, self._plans = run, work, losses, plans
        self._reports, self._joining = reports, joining
        restarting = Restarting(run, reports, joining)
        self._returning = Returning(run, work, losses, plans, reports, joining, restarting)
        self._rebuilding = Rebuilding(run, plans, reports, joining, restarting)
        self._committing = Committing(run, work, plans, reports, joining)
        self.current: Change | None = None

    # --- stop ---

    def begin(self, wish: Wish, at_s: float) -> list[Effect]:
        """A planned one; only while no other is under way."""
        assert self.current is None
        self.current = change = Change(at_s, at_s)
        change.add(wish.cause, *wish.entering, *wish.about)
        change.entering |= set(wish.entering)
        for worker in wish.entering:
            self._joining.enters(worker)
        change.leaving = dict(wish.leaving)
        change.add(wish.cause, *change.leaving)
        return self._halt(at_s)

    def again(self, at_s: float, cause: str = "stuck") -> list[Effect]:
        """All were told to go, but nothing comes: once more from the start."""
        assert self.current is not None
        self.current.add(cause)
        return self._halt(at_s)

    def lost(self, worker: WorkerId, stage: int, fault_s: float, at_s: float) -> list[Effect]:
        """A member is gone. What was under way begins again without it."""
        change = self.current or Change(at_s, fault_s)
        self.current = change
        change.fault_s = min(change.fault_s, fault_s)
        change.add("death", worker)
        change.dead.append((worker, stage))
        change.num_lost += 1
        change.leaving.pop(worker, None)
        if self._returning.all_again:
            change.entering.clear()
            change.leaving.clear()
            return [*self._returning.end_all(at_s), *self._halt(at_s)]
        return self._halt(at_s)

    def fault_was(self, worker: WorkerId, fault_s: float) -> None:
        """The word of a fault may come after the notice of what it did."""
        if self.current is not None and worker in self.current.workers:
            self.current.fault_s = min(self.current.fault_s, fault_s)

    def _halt(self, at_s: float) -> list[Effect]:
        change, run = self.current, self._run
        assert change is not None
        epoch = run.placement.next_epoch()
        change.stopping, change.halted_s = True, at_s
        change.tells.clear()
        change.busy_s.clear()
        change.resumed_s.clear()
        halt = messages.Halt(epoch=epoch)
        # Whoever replays without being a member has nothing to tell, but must stop as well.
        guests = [worker for worker in self._rebuilding.guests() if worker not in self._halted()]
        sends: list[Effect] = [Send(worker, halt) for worker in (*self._halted(), *guests)]
        return sends if self._halted() else sends + self._go(at_s)

    def _halted(self) -> list[WorkerId]:
        assert self.current is not None
        return sorted(self._run.stages.keys() | self.current.entering)

    def forget(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """A joiner is gone: nobody waits for it."""
        if self._run.phase is RunPhase.RETURNING:
            return self._returned(self._returning.lost(worker, at_s), at_s)
        if self.current is None:
            return []
        self.current.entering.discard(worker)
        if self._rebuilding.lost(worker):
            return self._halt(at_s)  # the others of the crew wait for it
        return self.tick(at_s)

    # --- tell ---

    def on_tell(self, tell: messages.Tell, at_s: float) -> list[Effect]:
        change, run = self.current, self._run
        worker = parse_worker(tell.worker)
        if change is None or not change.stopping or tell.epoch != run.epoch:
            return []  # of a change that was begun anew since
        change.tells[worker] = tell
        self._work.note(worker, run.epoch, tell.reduced, tell.done, tell.attempt)
        self._reports.note_kept(tell.worker, tell.kept_bytes)
        return self.tick(at_s)

    def tick(self, at_s: float) -> list[Effect]:
        """Go, as soon as all have told."""
        change = self.current
        if change is None or not change.stopping or self._run.phase is not RunPhase.TRAINING:
            return []
        return self._go(at_s) if change.tells.keys() >= set(self._halted()) else []

    def overdue(self, at_s: float, busy: Mapping[WorkerId, float]) -> list[WorkerId]:
        """Those that live but have not stopped for far too long.

        ``busy``: in an operation that may take so many seconds. Whoever was in it when told to
        stop cannot answer before its end.
        """
        change = self.current
        if change is None or not change.stopping or self._run.phase is not RunPhase.TRAINING:
            return []
        clock = self._run.clock
        # Whoever replays loads the job first, and hears nothing meanwhile.
        loads_s = clock.start_limit_s if self._run.logs.is_replaying else 0.0
        limit_s, since_s = max(clock.answer_s, loads_s), at_s - change.halted_s
        # Whoever has to wait until its part is on disk, before the next one, cannot stop either.
        most_s = limit_s + max(clock.wait_s, clock.start_limit_s)  # as it was told, early or late
        saving = self._run.saved.saving if since_s <= most_s else set[WorkerId]()
        missing = [w for w in self._halted() if w not in change.tells and w not in saving]
        for worker in missing:
            if since_s <= busy.get(worker, 0.0):
                change.busy_s[worker] = at_s
        return [w for w in missing if at_s - change.busy_s.get(w, change.halted_s) > limit_s]

    # --- plan and go ---

    def _go(self, at_s: float) -> list[Effect]:
        change, run = self.current, self._run
        assert change is not None
        if run.ending.gives_up_step:  # nobody begins a step that others have not ended
            furthest = [change.tells[worker].reduced for worker in run.stages]
            run.ending.shorten(max(furthest, default=run.ending.end_step))
        if any(change.tells[worker].reduced > run.ending.end_step for worker in run.stages):
            raise run.ended_early()  # a step that others have finished cannot be run again
        if set(self._wished(change).values()) != set(range(run.shape.stages)):
            return self._rebuild(change, at_s)
        if self._committing.applies(change):
            return self._restore(change, at_s)
        planned = self._planned(change)
        if planned is None:
            return self._go_back(change, "", at_s)
        stages, rest = planned
        saving = [(stage, change.tells[w].saving) for w, stage in stages.items()]
        effects = self._change_sides(change, stages, rest, at_s)
        self._adopt(change, rest, at_s)
        proceed = run.proceed(
            first_step=rest.first_step,
            running=[to_record(one) for one in rest.running],
            verdicts=rest.verdicts,
            saved=self._reports.checkpoints.saved(saving),
        )
        effects += [*self._rebuilding.forget(), *self._rebuilding.free_hosts(at_s)]
        effects += [*self._joining.log_borders(), *self._losses.show(at_s)]
        effects += self._reports.fold(at_s)  # what nobody counted while a stage had no holder
        return [*proceed, *effects, *self._joining.copies.find_sources(at_s)]

    def _restore(self, change: Change, at_s: float) -> list[Effect]:
        version = self._committing.version(change)
        if version is None:
            return self._go_back(change, "" if self._run.placement.lost_stages else NO_COPY, at_s)
        effects = self._committing.restore(change, version, at_s)
        self._clear(change, at_s)
        return [*self._losses.show(at_s), *effects]

    def _rebuild(self, change: Change, at_s: float) -> list[Effect]:
        """Nobody holds some stage. Called again whenever somebody has come a step further."""
        rebuilding = self._rebuilding
        for worker, stage in change.dead:  # a replacement will come under the same name
            change.work.setdefault(worker, self._work.dead(worker, stage))
        if not rebuilding.possible(change):
            return self._go_back(change, rebuilding.why_not, at_s)
        effects = rebuilding.go_on(change, at_s)
        if rebuilding.why_not:
            return effects + self._go_back(change, rebuilding.why_not, at_s)
        if hosts := rebuilding.entering(change):
            change.entering |= set(hosts)
            for host in hosts:
                self._joining.enters(host)
            return effects + self._halt(at_s)
        return effects

    def _go_back(self, change: Change, why: str, at_s: float) -> list[Effect]:
        freed = self._rebuilding.free_hosts(at_s)
        live = self._run.membership.live
        crew = [worker for worker in self._rebuilding.crew if worker in live]
        before = self._reports.next_step
        back = self._returning.begin(change.dead, at_s, why)
        if back:
            change.thrown_away += max(0, before - self._run.start[1])
        if back and crew:  # they are to stop before they build
            halt = messages.Halt(epoch=self._run.epoch)
            freed = [*(Send(worker, halt) for worker in crew), *freed]
        return [*freed, *back, *(self._rebuilding.forget() if back else [])]

    def on_replayed(self, replayed: messages.Replayed, at_s: float) -> list[Effect]:
        return [*self._rebuilding.on_replayed(replayed, at_s), *self.tick(at_s)]

    def on_replay_failed(self, failed: messages.ReplayFailed, at_s: float) -> list[Effect]:
        return self._halt(at_s) if self._rebuilding.on_failed(failed) else []

    def replays(self, worker: WorkerId) -> bool:
        return self._rebuilding.replays(worker)

    def note_stuck(self) -> bool:
        """A wait ran out. Whether it was in a replay: then it is begun again, or given up."""
        return self._rebuilding.note_stuck()

    def _planned(self, change: Change) -> "tuple[dict[WorkerId, int], Rests] | None":
        """Members after the change, and the rest of the running steps; None: only going back helps.

        If those who come or go make it impossible, all stay as they are.
        """
        for stages in (self._wished(change), dict(self._run.stages)):
            if len(set(stages.values())) < self._run.shape.stages:
                continue
            try:
                return stages, self._rests(change, stages)
            except ScheduleError:
                continue
        return None

    def _wished(self, change: Change) -> dict[WorkerId, int]:
        """Without those who leave, with the joiners that are not too far behind."""
        run = self._run
        stages = dict(run.stages)
        for worker in change.leaving:
            if list(stages.values()).count(stages[worker]) > 1:  # else others have died meanwhile
                del stages[worker]
        for worker in change.entering:
            stage = self._joining.joiners[worker].stage
            reduced = self._reduced(change, stage)
            if reduced is None or change.tells[worker].reduced >= reduced - 1:
                stages[worker] = stage
        return stages

    def _rests(self, change: Change, stages: Mapping[WorkerId, int]) -> Rests:
        run = self._run
        gone = [(worker, run.stages[worker]) for worker in change.leaving if worker not in stages]
        lost = [(w, stage) for w, stage in (*change.dead, *change.left) if w not in change.work]
        noted = [dead for work in change.work.values() for dead in work]
        return rests(
            self._plans.problem(stages),
            stages,
            {worker: change.tells[worker] for worker in stages},
            staggered=run.settings.staggered,
            end_step=run.ending.end_step,
            dead=[*noted, *(d for w, stage in (*lost, *gone) for d in self._work.dead(w, stage))],
        )

    def _reduced(self, change: Change, stage: int) -> int | None:
        """None: nobody holds the stage."""
        holders = self._run.placement.holders(stage)
        return max((change.tells[worker].reduced for worker in holders), default=None)

    def _change_sides(
        self, change: Change, stages: Mapping[WorkerId, int], rest: "Rests", at_s: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        entered = {}
        for worker in sorted(change.entering):
            if worker in stages:
                entered[worker] = change.tells[worker].reduced
                effects.append(self._joining.entered(worker, _step_of(rest), at_s))
            else:
                effects += self._joining.postpone(worker, at_s)
        for worker, joiner in change.leaving.items():
            if worker in stages:
                continue
            self._run.placement.release(worker)
            self._run.membership.handle(m.Left(worker, at_s))
            effects += self._joining.give(worker, joiner, at_s)
        self._reports.proceed(entered)
        return effects

    def _adopt(self, change: Change, rest: "Rests", at_s: float) -> None:
        run = self._run
        run.ending.decide(rest.first_step)
        steady = self._plans.for_members()
        run.plan.begin_at(rest.first_step)
        told = {w: change.tells[w] for w in run.stages}
        progress = {w: (tell.reduced, tell.attempt, tell.done) for w, tell in told.items()}
        self._work.adopt(run.epoch, rest.running, steady.schedule, progress)
        change.redone += len(rest.redone)
        change.operations = rest.num_operations
        change.step = _step_of(rest)
        self._clear(change, at_s)

    # --- everyone takes up work again ---

    def on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect] | None:
        """While all build anew; None: it is not needed for that."""
        returning = self._run.phase is RunPhase.RETURNING and self._returning.is_short
        return self._returning.on_hello(hello, at_s) if returning else None

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """While all build anew."""
        return self._returned(self._returning.on_ready(worker, at_s), at_s)

    def _returned(self, effects: list[Effect], at_s: float) -> list[Effect]:
        change = self.current
        if change is not None and self._run.phase is RunPhase.TRAINING:
            self._clear(change, at_s)
            change.step, change.operations = self._reports.next_step, 0
        return effects

    def _clear(self, change: Change, at_s: float) -> None:
        """The plan is made; now it is seen through."""
        change.stopping = False
        change.entering, change.leaving = set(), {}
        change.dead.clear()
        change.left.clear()
        change.work.clear()
        change.plan_s = self._run.settings.now(at_s)

    def on_resumed(self, worker: WorkerId, resumed_s: float, at_s: float) -> list[Effect]:
        change, run = self.current, self._run
        if change is None or change.stopping:
            return []
        change.resumed_s.setdefault(worker, resumed_s)
        if not run.stages.keys() <= change.resumed_s.keys():
            return []
        self.current = None
        last_s = max(change.resumed_s.values())
        run.times.note_stop(last_s - change.notice_s)
        return [*self._losses.show(at_s, all_of_them=True), Emit(self._recovered(change, last_s))]

    def _recovered(self, change: Change, last_s: float) -> events.Recovered:
        run = self._run
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


def _step_of(rest: "Rests") -> int:
    """The step that a change falls into: the oldest that is running."""
    return rest.running[0].step if rest.running else rest.first_step
