"""Nothing is left of a stage: all who live go back to the last checkpoint, or to the beginning.

Everyone is given a stage anew and builds it; then training begins as if for the first time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.cluster import WorkerId
from holdfast.control import membership as m
from holdfast.control.effects import Effect, Emit
from holdfast.control.joining import Joining
from holdfast.control.losses import Losses, Work
from holdfast.control.plans import Plans
from holdfast.control.reports import Reports
from holdfast.control.run import Run, RunPhase
from holdfast.errors import HoldfastError
from holdfast.observability import events


class Returning:
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
        self._builds: Counter[WorkerId] = Counter()  # how many stages each was told to build

    def begin(self, dead: Sequence[tuple[WorkerId, int]], at_s: float) -> list[Effect]:
        """All members have stopped. Nothing happens yet while it is not clear who can help."""
        run = self._run
        if run.interrupted_s is not None:
            raise HoldfastError(f"interrupted; all workers were stopped. {run.advice}")
        crew = self._crew()
        if len(crew) < run.shape.stages:
            if self._may_get_better(dead, at_s):
                return []
            raise HoldfastError(self._too_few(dead, len(crew)))
        checkpoint, step = run.start
        # A stage also counts as lost if nobody has the old weights that its rest needs.
        [stage, *_] = [*run.lost_stages, *(stage for _, stage in dead), 0]
        back = events.WentBack(
            at_s=at_s,
            lost_stage=stage,
            to_step=step,
            checkpoint=checkpoint,
            reason=f"nobody has the state of stage {stage} any more; {len(crew)} workers go on",
        )
        run.phase = RunPhase.RETURNING
        run.epoch += 1  # a joiner may copy in this one already: it must be halted all the same
        self._builds.clear()
        run.stages.clear()
        assigned = self._assign(spread(crew, run.shape.stages), at_s)
        return [*self._losses.show(at_s, all_of_them=True), Emit(back), *assigned]

    def _crew(self) -> dict[WorkerId, int]:
        """Who can be given any stage now, and which one it is nearest to."""
        joiners = self._joining.joiners
        ready = self._run.membership.all_in(m.Phase.READY, m.Phase.COPYING)
        return {**self._run.stages, **{w: joiners[w].stage for w in ready if w in joiners}}

    def _may_get_better(self, dead: Sequence[tuple[WorkerId, int]], at_s: float) -> bool:
        coming = self._run.membership.all_in(m.Phase.STARTING, m.Phase.BUILDING)
        return bool(coming) or not all(self._losses.explained(w, at_s) for w, _ in dead)

    def _too_few(self, dead: Sequence[tuple[WorkerId, int]], num_live: int) -> str:
        who = []
        for worker, _ in dead:
            loss, pid = self._losses.last[worker], self._run.hellos[worker].pid
            who.append(
                f"worker {worker} (pid {pid}) was lost in step {loss.step + 1}, {loss.cause}"
            )
        lost = ", ".join(map(str, self._run.lost_stages))
        nobody = f"nobody holds stage {lost} any more, and " if lost else ""
        live = f"{num_live} live {'worker' if num_live == 1 else 'workers'}"
        num_stages = self._run.shape.stages
        stages = f"{num_stages} {'stage' if num_stages == 1 else 'stages'}"
        silent = any("silent" in self._losses.last[worker].cause for worker, _ in dead)
        hint = "If they were only busy, raise workers.silence_limit_s. " if silent else ""
        return (
            f"{'; '.join(who)}: {nobody}{live} cannot hold {stages}; all "
            f"workers were stopped. {hint}{self._run.advice}"
        )

    def _assign(self, stages: Mapping[WorkerId, int], at_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker, stage in sorted(stages.items()):
            if self._run.rebuilding.get(worker) != stage:
                effects += self._joining.rebuilds(worker, at_s)
                self._run.membership.handle(m.Assigned(worker, at_s))
                self._builds[worker] += 1
                effects.append(self._run.assign(worker, stage))
        self._run.rebuilding = dict(stages)
        return effects

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        if worker not in self._run.rebuilding:  # a joiner, which must wait until there are members
            return self._joining.on_ready(worker, at_s)
        self._builds[worker] -= 1
        if not self._builds[worker]:
            self._run.membership.handle(m.IsReady(worker, at_s))
        return self._go(at_s)

    def lost(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """One of those who build is gone, or a joiner, which harms nobody."""
        stage = self._run.rebuilding.pop(worker, None)
        if stage is None:
            return []
        del self._builds[worker]
        if len(self._run.rebuilding) < self._run.shape.stages:
            raise HoldfastError(self._too_few([(worker, stage)], len(self._run.rebuilding)))
        again = self._assign(spread(self._run.rebuilding, self._run.shape.stages), at_s)
        return again or self._go(at_s)

    def _go(self, at_s: float) -> list[Effect]:
        run = self._run
        if any(self._builds.values()):
            return []
        for worker in self._run.rebuilding:
            run.membership.handle(m.Entered(worker, at_s))
        run.stages, run.phase = dict(run.rebuilding), RunPhase.TRAINING
        run.rebuilding.clear()
        run.steady = self._plans.steady(self._plans.problem(run.stages))
        run.planned_for = dict(run.stages)
        _, step = run.start
        told = dict.fromkeys(run.stages, (step, 0, 0))
        self._work.adopt(run.epoch, (), run.steady.schedule, told)
        self._reports.begin(step, at_s)
        saved = self._reports.saved()
        return [*run.proceed(first_step=step, saved=saved), *self._joining.find_sources(at_s)]


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
