"""Stages in training on workers that take turns, and a coordinator's part: stop, tell, plan, go.

Also the jobs they train, and what an undisturbed run of each comes to.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from helpers import jobs
from helpers.harness.taking_turns import Moments, Paced, Turns
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import config_from
from holdfast.control.inventory.remainder import Remainders, remainders
from holdfast.data.batches import Batches
from holdfast.device.choosing import open_device
from holdfast.errors import EpochPast, PeerLost
from holdfast.job import Job
from holdfast.job_call import load_job
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.protocol import messages
from holdfast.protocol.half_done import to_record
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.runtime.step.stage_runner import StageTraining
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import gpipe, one_f_one_b
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.validity import walk
from holdfast.storage.places import Places
from holdfast.transport.local.transport import LocalHub

MICROBATCHES, STEPS = 6, 3
CUTS = {1: (), 2: (3,), 3: (2, 5)}
SHAPES = [Shape(2, 2, MICROBATCHES), Shape(3, 2, MICROBATCHES), Shape(2, 3, MICROBATCHES)]

NEVER, SOMETIMES, ALWAYS = "never clipped", "clipped now and then", "always clipped"
UNTIED = "clipped now and then, without ties"
CLIP_NORMS = {NEVER: 1e6, SOMETIMES: 1.2, ALWAYS: 1e-2, UNTIED: 1.0}
_TIE = "last.weight = first.weight"
IN_TURNS = [
    pytest.mark.usefixtures("one_thread"),
    # A first step that is skipped or taken back moves the schedule before the optimizer.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

Makers = dict[str, Callable[[], Job]]
Calm = dict[str, tuple[dict[str, str], list[messages.StepReport]]]


def makers_in(folder: Path) -> Makers:
    made: Makers = {}
    for number, (name, clip_norm) in enumerate(CLIP_NORMS.items()):
        own = folder / str(number)
        own.mkdir()
        path = jobs.mixed(own, clip_norm)
        if name == UNTIED:
            assert _TIE in path.read_text()
            path.write_text(path.read_text().replace(_TIE, ""))
        made[name] = partial(load_job, path, 0)
    return made


def undisturbed(makers: Makers) -> Calm:
    """One worker, one stage: nothing to disagree with. Digests and reports."""
    found: Calm = {}
    for name, maker in makers.items():
        alone = Cluster(maker, Random(0), Shape(1, 1, MICROBATCHES), "global")
        alone.go()
        found[name] = alone.finish(), alone.reports[WorkerId(0, 0)]
    return found


class Cluster:
    """Live workers, and what a coordinator would do for them."""

    def __init__(
        self,
        make_job: Callable[[], Job],
        random: Random,
        shape: Shape,
        mode: str,
        *,
        consistency: str = "keep-old",
    ) -> None:
        self.random, self.shape, self.mode = random, shape, mode
        self.consistency = consistency
        self.turns, self.hub = Turns(random), LocalHub()
        self.epoch, self.halted_before = 0, 0
        self.seen: set[str] = set()
        self.reports: dict[WorkerId, list[messages.StepReport]] = {}
        everyone = [WorkerId(d, s) for d in range(shape.pipelines) for s in range(shape.stages)]
        self.stages = {worker: worker.stage for worker in everyone}
        self.transports: dict[WorkerId, Paced] = {}
        self.trainings: dict[WorkerId, StageTraining] = {}
        for worker in everyone:
            self.add(worker, worker.stage, make_job())

    def add(self, worker: WorkerId, stage: int, job: Job) -> None:
        """Build its stage; whether it is a member is for ``stages`` to say."""
        self.transports[worker] = Paced(worker, self.hub, self.turns)
        self.trainings[worker] = self._build(worker, stage, job)

    def _build(self, worker: WorkerId, stage: int, job: Job) -> StageTraining:
        config = config_from(
            {
                "parallel": {"microbatches": MICROBATCHES},
                "train": {"steps": STEPS},
                "checkpoint": {"every_steps": 0, "at_end": False},
                "optimizer": {"mode": self.mode},
                "recovery": {"consistency": self.consistency},
            }
        )
        assign = messages.Assign(
            stage=stage,
            cut=list(CUTS[self.shape.stages]),
            checkpoint="",
            first_step=0,
            beat_s=1.0,
            wait_s=20.0,
            log=None,
            faults=[],
            part="stage-0.0a1b2c3d",
        )
        self.reports[worker] = []
        return StageTraining(
            me=worker,
            config=config,
            job=job,
            batches=Batches(job, 0, MICROBATCHES),
            transport=self.transports[worker],
            assign=assign,
            keeping=StateKeeping(config),
            places=Places("unused", "", "", ""),
            tell=partial(self._hear, worker),
            check=partial(self._check, worker),
            lease=Lease(is_needed=False),
            injector=Moments(worker, self.turns),
            device=open_device("auto", -1, 0),
        )

    def _hear(self, worker: WorkerId, message: messages.Message) -> None:
        if isinstance(message, messages.StepReport):
            self.reports[worker].append(message)

    def _check(self, worker: WorkerId) -> None:
        self.turns.moment(worker, "check")
        if self.epoch < self.halted_before:
            raise EpochPast(f"epoch {self.epoch} is over")

    # --- stop, tell, plan, go ---

    def halt(self) -> None:
        self.halted_before = self.epoch + 1
        for worker in self.stages:
            self.transports[worker].interrupt(self.halted_before)
        self.turns.run()
        for runner in self.turns.runners.values():
            assert runner.ended, f"not halted: {self.turns.stuck}"
            if runner.error and not isinstance(runner.error, EpochPast | PeerLost):
                raise runner.error

    def go(self, schedule: Schedule | None = None) -> None:
        """The first time it starts the training. ``schedule``: of whole steps; None: any."""
        tells = {w: self.trainings[w].inventory(self.epoch + 1) for w in self.stages}
        plan = remainders(
            self._problem(),
            self.stages,
            tells,
            staggered=self.mode == "staggered",
            end_step=STEPS,
        )
        self._note(plan, tells)
        self.epoch += 1
        proceed = messages.Proceed(
            epoch=self.epoch,
            stages={str(worker): stage for worker, stage in self.stages.items()},
            addresses={},
            running=[to_record(one) for one in plan.running],
            schedule=(schedule or self._any_schedule()).dumps(),
            first_step=plan.first_step,
            end_step=STEPS,
            verdicts=plan.verdicts,
            saved={},
            saves=[],
        )
        for worker in self.stages:
            self.turns.start(worker, partial(self._proceed, worker, proceed))

    def _proceed(self, worker: WorkerId, proceed: messages.Proceed) -> None:
        transport = self.transports[worker]
        transport.advance(proceed.epoch)
        members = {parse_worker(name) for name in proceed.stages}
        transport.disconnect({*members, *self.trainings[worker].sender.joiners})
        self.trainings[worker].run(proceed)

    def kill(self, worker: WorkerId) -> None:
        self.transports[worker].close()
        self.turns.kill(worker)
        for known in (self.stages, self.transports, self.trainings, self.reports):
            known.pop(worker)

    def may_die(self) -> list[WorkerId]:
        """Whoever is not the last holder of a stage."""
        held = list(self.stages.values())
        return [worker for worker, stage in self.stages.items() if held.count(stage) > 1]

    def _problem(self) -> Problem:
        return Problem(
            shape=self.shape,
            costs=Costs.uniform(self.shape.stages, fused_s=self.random.choice([1.5, 2.5])),
            memory=Memory(limit=self.random.choice([2.0, 100.0])),
            members=tuple(Member(worker, stage) for worker, stage in self.stages.items()),
        )

    def _any_schedule(self) -> Schedule:
        """Any holder may have any micro-batch; some have none; some backwards are split."""
        order = walk(self.random.choice([gpipe, one_f_one_b])(self.shape)).order
        routes: dict[tuple[int, int | None], WorkerId] = {}
        lanes: dict[WorkerId, list[Op]] = {worker: [] for worker in self.stages}
        for _, op in order:
            if op.kind is not Kind.R:
                holders = [worker for worker, held in self.stages.items() if held == op.stage]
                place = (op.stage, op.microbatch)
                lane = lanes[routes.setdefault(place, self.random.choice(holders))]
                split = op.kind is Kind.BW and self.random.random() < 0.3
                kinds = (Kind.B, Kind.W) if split else (op.kind,)
                lane += [Op(op.stage, kind, op.microbatch) for kind in kinds]
        for worker, lane in lanes.items():
            lane.append(Op(self.stages[worker], Kind.R))
        return Schedule(self.shape, lanes)

    # --- what was met, and what came out ---

    def _note(self, plan: Remainders, tells: dict[WorkerId, messages.Inventory]) -> None:
        self.seen.add(f"{len(plan.running)} running")
        for one in plan.running:
            self.seen |= {"a copy"} if one.copies else set()
            self.seen |= {"a second attempt"} if one.attempt else set()
            stages = {stage: one.reducers(stage) for stage in range(self.shape.stages)}
            open_ends = [bool(stages[0]) and 0 not in one.copies, bool(stages[max(stages)])]
            self.seen |= {"half a tie"} if sum(open_ends) == 1 else set()
            for worker, lane in one.schedule.lanes.items():
                again = tells[worker].reduced > one.step and lane
                self.seen |= {"run for others"} if again else set()
                self.seen |= {"sent again"} if one.resend(worker) else set()

    def finish(self) -> dict[str, str]:
        """Digests of all layers, on which all holders agree."""
        self.turns.run()
        for runner in self.turns.runners.values():
            if runner.error:
                raise runner.error
        assert not self.turns.stuck
        digests: dict[str, str] = {}
        for training in self.trainings.values():
            for layer, digest in training.finished(0, 0).digests.items():
                assert digests.setdefault(layer, digest) == digest, f"layer {layer} differs"
        return digests

    def assert_ends_as(self, calm: tuple[dict[str, str], list[messages.StepReport]]) -> None:
        digests, reports = calm
        assert self.finish() == digests
        self.check_reports(reports)

    def check_reports(self, calm: list[messages.StepReport]) -> None:
        """Every worker reports every step once; losses and norms are those of the calm run."""
        for worker, reports in self.reports.items():
            assert [report.step for report in reports] == list(range(STEPS)), worker
            for report, expected in zip(reports, calm, strict=True):
                assert (report.norm, report.clipped) == (expected.norm, expected.clipped)
                if self.stages[worker] == self.shape.last_stage:
                    assert report.losses == expected.losses
                    assert report.num_tokens == expected.num_tokens
