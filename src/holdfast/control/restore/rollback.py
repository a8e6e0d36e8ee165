"""All go back to the last checkpoint, or to the beginning: nothing is left of a stage.

Everyone is given a stage anew and builds it; then training begins as if for the first time. If too
few are left, lost workers are started again. With some policies every loss ends here, and all are.
"""

from collections.abc import Mapping, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.decide.decision import Rollback
from holdfast.control.effects import Effect, Emit, Fence, Send
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.join.restarting import Restarting
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers import membership as m
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages


class RollingBack:
    def __init__(self, parts: RecoveryParts, restarting: Restarting, policy: RecoveryRules) -> None:
        self._run, self._tracker, self._losses, self._plans = parts[:4]
        self._reports, self._joining, self._restarting = parts.reports, parts.joining, restarting
        self.all_again = policy.ends_all
        self._dead: list[tuple[WorkerId, int]] = []  # and the stage each held
        self._ended_s = -1.0  # when the survivors of a loss were ended

    def begin(
        self, dead: Sequence[tuple[WorkerId, int]], decision: Rollback, at_s: float
    ) -> list[Effect]:
        """All members have stopped. Nothing happens yet while it is not clear who can help."""
        run = self._run
        if run.ending.is_good:
            run.ending.withdraw()
        if run.ending.is_early:
            raise run.ended_early()
        crew, self._dead = self._crew(), list(dead)
        too_few = len(crew) < run.shape.stages
        if too_few and (at_s <= self._ended_s or not self._all_explained(at_s)):
            return []
        whole = self._reports.checkpoints.whole(at_s, all_have_said=True)
        started = self._more(len(crew), at_s)
        # A stage also counts as lost if nobody has the old weights that its rest needs.
        lost = [] if self.all_again else run.placement.lost_stages
        [stage, *_] = [*lost, *(stage for _, stage in dead), 0]
        back = self._went_back(stage, len(crew), len(started), decision.reason, at_s)
        run.lifecycle.enter(RunPhase.RETURNING)
        run.placement.next_epoch()  # a joiner may copy in this one: it must be halted all the same
        run.placement.release_all()
        lost_logs = run.begin_anew()
        assigned = self._assign(self._places(crew), at_s)
        shown = self._losses.show(at_s, all_of_them=True)
        return [*whole, *shown, Emit(back), *lost_logs, *assigned, *started]

    def _places(self, crew: Mapping[WorkerId, int]) -> dict[WorkerId, int]:
        if self.all_again:  # as in the beginning
            return {worker: self._run.first_stages.get(worker, crew[worker]) for worker in crew}
        return spread(crew, self._run.shape.stages)

    def _went_back(
        self, stage: int, num_left: int, num_started: int, reason: str, at_s: float
    ) -> events.WentBack:
        checkpoint, step = self._run.start
        left = [f"{_count(num_left)} on"] if num_left else []
        new = [f"{num_started} started again"] if num_started else []
        return events.WentBack(
            at_s=at_s,
            lost_stage=stage,
            to_step=step,
            checkpoint=checkpoint,
            reason="; ".join([reason, ", ".join([*left, *new])]),
            thrown_away=max(0, self._reports.next_step - step),
        )

    def _crew(self) -> dict[WorkerId, int]:
        """Who can be given any stage now, and which one it is nearest to."""
        joiners = self._joining.joiners
        ready = self._run.membership.all_in(m.WorkerPhase.READY, m.WorkerPhase.COPYING)
        here = {**self._run.stages, **self._run.placement.rolling_back}
        return {**here, **{w: joiners[w].stage for w in ready if w in joiners}}

    def _all_explained(self, at_s: float) -> bool:
        return all(self._losses.explained(worker, at_s) for worker, _ in self._dead)

    # --- too few are left ---

    def _more(self, num_here: int, at_s: float) -> list[Effect]:
        """As many as are missing, besides those who are on the way; nobody: the run is over."""
        if self.all_again:
            started = self._restarting.everyone(at_s)
            if not started and num_here + len(self._coming()) < len(self._run.first_stages):
                raise HoldfastError(self._too_few(num_here))
            return started
        num_missing = self._run.shape.stages - num_here
        coming = self._coming()
        started = []
        for _ in range(num_missing - len(coming)):
            started += self._restarting.ask(at_s)
        if num_missing > 0 and not coming and not started:
            raise HoldfastError(self._too_few(num_here))
        return started

    def _coming(self) -> list[WorkerId]:
        coming = self._run.membership.all_in(m.WorkerPhase.STARTING, m.WorkerPhase.BUILDING)
        return [worker for worker in coming if worker not in self._run.placement.rolling_back]

    def _too_few(self, num_live: int) -> str:
        who = []
        for worker, _ in self._dead:
            loss, pid = self._losses.last[worker], self._run.hellos[worker].pid
            who.append(
                f"worker {worker} (pid {pid}) was lost in step {loss.step + 1}, {loss.cause}"
            )
        held = {*self._run.stages.values(), *self._run.placement.rolling_back.values()}
        lost = ", ".join(str(s) for s in range(self._run.shape.stages) if s not in held)
        nobody = f"nobody holds stage {lost} any more, and " if lost else ""
        live = f"{num_live} live {'worker' if num_live == 1 else 'workers'}"
        num_stages = self._run.shape.stages
        stages = f"{num_stages} {'stage' if num_stages == 1 else 'stages'}"
        silent = any(self._losses.last[worker].silent for worker, _ in self._dead)
        hint = "If they were only busy, raise workers.heartbeat_timeout_s. " if silent else ""
        lost_by = f"{'; '.join(who)}: " if who else ""  # a successor may know of none
        return (
            f"{lost_by}{nobody}{live} cannot hold {stages}; all "
            f"workers were stopped. {self._restarting.tried}{hint}{self._run.advice}"
        )

    # --- policies with which a loss ends everyone ---

    def end_all(self, at_s: float) -> list[Effect]:
        """After a loss: whoever is left ends as well.

        They may still have something to say, e.g. that a part of a checkpoint is on disk:
        ``begin`` does nothing before the next look at the clock.
        """
        mode = self._run.config.recovery.mode
        stop = messages.Stop(reason=f"a worker was lost: all start again (recovery.mode={mode})")
        effects: list[Effect] = [Send(worker, stop) for worker in self._run.membership.live]
        for worker in self._run.membership.all_in(m.WorkerPhase.MEMBER, *m.JOINING):
            self._run.membership.handle(m.GaveUp(worker, at_s))
            self._run.assignments.forget(worker)  # it may say once more that it has built
            self._run.machines.unseat(worker)  # else its slot would be taken for ever
            self._joining.forget(worker)
            effects.append(Fence(worker))
        self._run.placement.hold_all({})
        self._ended_s = at_s
        return effects

    # --- everyone builds ---

    def _assign(self, stages: Mapping[WorkerId, int], at_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker, stage in sorted(stages.items()):
            if self._run.placement.rolling_back.get(worker) != stage:
                effects += self._joining.rolls_back(worker, at_s)
                self._run.membership.handle(m.Assigned(worker, at_s))
                effects.append(self._run.assign(worker, stage))
        self._run.placement.roll_back(stages)
        return effects

    @property
    def is_short(self) -> bool:
        """More have to come before training can go on."""
        if self.all_again:
            return not self._run.first_stages.keys() <= self._run.placement.rolling_back.keys()
        return len(self._run.placement.rolling_back) < self._run.shape.stages

    def on_hello(self, hello: messages.Hello, at_s: float) -> list[Effect]:
        """Somebody has come who is needed: it builds at once what the others have left."""
        worker, held = parse_worker(hello.worker), list(self._run.placement.rolling_back.values())
        welcome = self._joining.admission.welcome(hello, at_s)
        stage = min(range(self._run.shape.stages), key=lambda stage: (held.count(stage), stage))
        if self.all_again:
            stage = self._run.first_stages.get(worker, stage)
        return [welcome, *self._assign({**self._run.placement.rolling_back, worker: stage}, at_s)]

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        if (
            worker not in self._run.placement.rolling_back
        ):  # a joiner, which must wait until there are members
            return [*self._joining.on_ready(worker, at_s), *self._gather(at_s)]
        self._run.membership.handle(m.IsReady(worker, at_s))
        return self._go(at_s)

    def lost(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """One of those who build is gone, or a joiner, which harms nobody unless it is needed."""
        stage = self._run.placement.leave_rollback(worker)
        if stage is not None:
            self._dead.append((worker, stage))
        if self.all_again:
            return [*self.end_all(at_s), *self._more(0, at_s)]
        if stage is None:
            return self._gather(at_s)
        again = self._assign(self._places(self._run.placement.rolling_back), at_s)
        return again + self._gather(at_s) or self._go(at_s)

    def _gather(self, at_s: float) -> list[Effect]:
        """If they are too few: those who have come meanwhile, and as many more as are missing."""
        if not self.is_short:
            return []
        crew = self._crew()
        assigned = self._assign(self._places(crew), at_s)
        return [*assigned, *self._more(len(crew), at_s)]

    def _go(self, at_s: float) -> list[Effect]:
        run = self._run
        builds = map(run.assignments.num_builds, run.placement.rolling_back)
        if any(builds) or self.is_short:
            return []
        for worker in self._run.placement.rolling_back:
            run.membership.handle(m.Entered(worker, at_s))
        run.placement.hold_all(run.placement.rolling_back)
        run.lifecycle.enter(RunPhase.TRAINING)
        steady = self._plans.replan()
        _, step = run.start
        told = dict.fromkeys(run.stages, (step, 0, 0))
        self._tracker.adopt(run.epoch, (), steady.schedule, told)
        self._reports.begin(step, at_s)
        saved = self._reports.checkpoints.saved()
        return [
            *run.proceed(first_step=step, saved=saved),
            *self._joining.copies.find_sources(at_s),
        ]


def spread(near: Mapping[WorkerId, int], num_stages: int) -> dict[WorkerId, int]:
    """A stage for everyone: their own where that leaves no stage two holders short of another."""
    stages = dict(near)

    def holders(stage: int) -> list[WorkerId]:
        return sorted(worker for worker, held in stages.items() if held == stage)

    while True:
        counts = [len(holders(stage)) for stage in range(num_stages)]
        most, least = counts.index(max(counts)), counts.index(min(counts))
        if counts[most] - counts[least] < 2:
            return stages
        stages[holders(most)[-1]] = least


def _count(number: int) -> str:
    return f"{number} {'worker goes' if number == 1 else 'workers go'}"
