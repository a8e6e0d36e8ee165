"""A step's reduction when some have its result already: the same bits as all of them together."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.state.results import StageForm
from holdfast.runtime.step.epoch import Epoch, Parts
from holdfast.runtime.update.commit import StepResult
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Schedule
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 20.0
MICROBATCHES = 4
STEP, ATTEMPT = 5, 1
FIRST, BODY, NORM, LAST, HEAD = (
    (0, "weight"),
    (1, "weight"),
    (2, "bias"),
    (3, "bias"),
    (3, "weight"),
)
SHAPES = {FIRST: (6, 4), BODY: (9,), NORM: (3,), LAST: (5,), HEAD: (6, 4)}
TIES = [(FIRST, HEAD)]
TWO = {0: [FIRST, BODY, NORM], 1: [LAST, HEAD]}
THREE = {0: [FIRST, BODY], 1: [NORM, LAST], 2: [HEAD]}
BUFFER = {"7.mean": torch.Size([2])}  # the same of each stage

pytestmark = pytest.mark.usefixtures("one_thread")

Slots = Mapping[int, Sequence[tuple[int, str]]]
Worker = WorkerId


def worker(name: str) -> WorkerId:
    pipeline, stage = name.split(".")
    return WorkerId(int(pipeline), int(stage))


class Group:
    """Two holders of every stage, each with the sums of every second micro-batch."""

    def __init__(self, slots: Slots, *, used: bool = True) -> None:
        self.slots = slots
        self.members = [WorkerId(d, s) for d in range(2) for s in slots]
        self.parts = {member: self._parts(member, used) for member in self.members}

    def _parts(self, member: WorkerId, used: bool) -> Parts:
        names = self.slots[member.stage]
        layout = FlatLayout.of([torch.zeros(SHAPES[name]) for name in names])
        gradients = ExactGradients(layout, 2 * MICROBATCHES)
        is_last = member.stage == max(self.slots)
        sums = StepSums(MICROBATCHES, BUFFER, is_last=is_last)
        for microbatch in range(member.pipeline, MICROBATCHES, 2):
            for slot, name in enumerate(names):
                if used or name not in TIES[0]:
                    gradients.add(slot, gradient(name, microbatch))
            sums.add({"7.mean": torch.full((2,), microbatch + 1.0, dtype=torch.float64)})
            if is_last:
                sums.add_loss(microbatch, microbatch / 3, 2)
        return Parts(self.slots, TIES, gradients, sums, StageForm(layout, BUFFER))

    def reduce(
        self,
        routes: RunningStep,
        results: Mapping[WorkerId, StepResult],
        gone: Sequence[WorkerId] = (),
    ) -> dict[WorkerId, StepResult]:
        """Everyone serves what it has; whoever has R in its lane reduces."""
        hub = LocalHub()
        live = [member for member in self.members if member not in gone]
        stages = {member: member.stage for member in live}
        epochs = {
            member: Epoch(
                member,
                member.stage,
                stages,
                LocalTransport(member, hub),
                self.parts[member],
                LIMIT_S,
            )
            for member in live
        }

        def run(member: WorkerId) -> StepResult | None:
            epochs[member].serve(routes, results.get(member))
            if Op(member.stage, Kind.R) not in routes.schedule.lanes[member]:
                return None
            return epochs[member].reduce(routes, STEP, ATTEMPT, on_sent=lambda: None)

        with ThreadPoolExecutor(len(live)) as pool:
            running = {member: pool.submit(run, member) for member in live}
            made = {member: one.result(LIMIT_S) for member, one in running.items()}
        for epoch in epochs.values():
            transport = epoch.transport
            assert transport.statistics.unread_bytes == 0, f"{epoch.me} was sent what it needs not"
        return {member: result for member, result in made.items() if result is not None}

    def joint(self) -> dict[WorkerId, StepResult]:
        return self.reduce(routes(self, self.members), {})


def gradient(name: tuple[int, str], microbatch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * microbatch + 10 * name[0] + len(name[1]))
    return torch.randn(SHAPES[name], generator=generator) * 10.0**microbatch


def routes(
    group: Group, reducers: Sequence[WorkerId], copies: Mapping[int, WorkerId] | None = None
) -> RunningStep:
    lanes = {
        member: ((Op(member.stage, Kind.R),) if member in reducers else ())
        for member in group.members
    }
    schedule = Schedule(Shape(2, len(group.slots), MICROBATCHES), lanes)
    return RunningStep(STEP, ATTEMPT, schedule, {}, copies or {})


def bits(result: StepResult) -> tuple[object, ...]:
    reduced, totals = result.reduced, result.totals
    return (
        (result.step, result.attempt, reduced.flat.numpy().tobytes(), reduced.touched),
        (reduced.nonfinite, reduced.squares, reduced.maxima),
        {key: change.numpy().tobytes() for key, change in totals.changes.items()},
        (totals.losses, totals.num_tokens),
    )


def assert_same(found: Mapping[WorkerId, StepResult], joint: Mapping[WorkerId, StepResult]) -> None:
    assert found
    for member, result in found.items():
        assert bits(result) == bits(joint[member]), member


CUTS = pytest.mark.parametrize("slots", [TWO, THREE], ids=["two stages", "three stages"])


@CUTS
def test_all_together_give_twins_of_a_tie_the_same_gradient_and_holders_the_same_result(slots):
    joint = Group(slots).joint()
    last = max(slots)
    for d in range(2):
        first = joint[WorkerId(d, 0)].reduced.gradients()[slots[0].index(FIRST)]
        head = joint[WorkerId(d, last)].reduced.gradients()[slots[last].index(HEAD)]
        assert torch.equal(first, head)
        expected = sum(
            gradient(name, m).double() for name in (FIRST, HEAD) for m in range(MICROBATCHES)
        )
        torch.testing.assert_close(first.double(), expected, rtol=1e-6, atol=1e-4)
    assert len({repr(bits(joint[WorkerId(d, last)])) for d in range(2)}) == 1


@CUTS
@pytest.mark.parametrize("used", [True, False], ids=["used", "not used"])
@pytest.mark.parametrize("done", ["first", "last"])
def test_a_tie_with_a_stage_that_is_done_gets_its_sum_from_there(slots, used, done):
    """And a stage that has no part in the tie reduces as ever."""
    group = Group(slots, used=used)
    joint = group.joint()
    stage = 0 if done == "first" else max(slots)
    waiting = [member for member in group.members if member.stage != stage]
    results = {member: joint[member] for member in group.members if member.stage == stage}
    found = group.reduce(routes(group, waiting), results)
    assert set(found) == set(waiting)
    assert_same(found, joint)


@CUTS
@pytest.mark.parametrize("left_behind", ["0.0", "1.0", "0.1", "1.1"])
def test_a_holder_left_behind_gets_a_copy_of_its_stages_result(slots, left_behind):
    group = Group(slots)
    joint = group.joint()
    behind = worker(left_behind)
    source = WorkerId(1 - behind.pipeline, behind.stage)
    results = {member: joint[member] for member in group.members if member != behind}
    found = group.reduce(routes(group, [behind], {behind.stage: source}), results)
    assert set(found) == {behind}
    assert_same(found, joint)


@CUTS
@pytest.mark.parametrize("half_done", ["first", "last"])
def test_a_stage_half_of_which_is_done_serves_its_other_half_and_the_other_end_of_the_tie(
    slots, half_done
):
    group = Group(slots)
    joint = group.joint()
    stage = 0 if half_done == "first" else max(slots)
    source = WorkerId(1, stage)
    waiting = [member for member in group.members if member != source]
    found = group.reduce(routes(group, waiting, {stage: source}), {source: joint[source]})
    assert set(found) == set(waiting)
    assert_same(found, joint)


@CUTS
def test_both_ends_of_a_tie_half_done_give_copies_and_nothing_else(slots):
    group = Group(slots)
    joint = group.joint()
    ends = {0: WorkerId(0, 0), max(slots): WorkerId(1, max(slots))}
    waiting = [member for member in group.members if member not in ends.values()]
    results = {source: joint[source] for source in ends.values()}
    found = group.reduce(routes(group, waiting, ends), results)
    assert_same(found, joint)


@CUTS
def test_nobody_serves_the_result_of_another_step(slots):
    group = Group(slots)
    older = {
        member: StepResult(STEP - 1, 0, result.reduced, result.totals)
        for member, result in group.joint().items()
    }
    assert_same(group.reduce(routes(group, group.members), older), group.joint())


def test_holders_and_the_first_of_them_are_those_of_the_epoch_whatever_their_names_say():
    group = Group(TWO)
    stages = {worker("1.0"): 0, worker("0.1"): 1, worker("0.0"): 1}
    hub = LocalHub()
    me = worker("0.0")
    epoch = Epoch(me, 1, stages, LocalTransport(me, hub), group.parts[worker("0.1")], LIMIT_S)
    assert epoch.holders == {0: [worker("1.0")], 1: [worker("0.0"), worker("0.1")]}
    assert epoch.is_first_holder
