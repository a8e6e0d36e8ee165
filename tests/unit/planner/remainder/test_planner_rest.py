"""The planned rest of a half-done step, run lane by lane in a simulated cluster."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.half_done import World, cross_routed, grid
from holdfast.cluster import WorkerId
from holdfast.errors import MemoryExceeded
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.remainder.facts import Facts, MicrobatchProgress
from holdfast.planner.remainder.remainder import remainder_of_step
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op, Shape

CHANGE = {Kind.F: 1, Kind.B: 0, Kind.W: -1, Kind.BW: -1, Kind.R: 0}


def asked(shape, holders, random=None, *, limit=100.0, fused_s=None, link_s=0.1):
    """A problem about these holders; with ``random``, of several speeds."""
    speeds = {one: random.choice([1.0, 1.0, 0.5, 0.25]) if random else 1.0 for one in holders}
    return Problem(
        shape=shape,
        costs=Costs.uniform(shape.stages, fused_s=fused_s, link_s=link_s),
        memory=Memory(limit=limit),
        members=tuple(Member(one, held[0], speeds[one]) for one, held in holders.items()),
    )


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32))
def test_the_lanes_end_the_step_whenever_workers_die(seed):
    random = Random(seed)
    shape, holders, lanes = cross_routed(random)
    world = World(shape, holders, lanes)
    num_operations = sum(map(len, lanes.values()))
    for _ in range(random.randint(1, 3)):
        world.run_some(random, random.randint(0, num_operations))
        world.kill(random)
        before = set().union(*(world.finished[one] for one in world.holders))
        problem = asked(shape, world.holders, random, fused_s=random.choice([None, 1.5]))
        rest = remainder_of_step(problem, world.holders, world.facts())
        planned = [op for lane in rest.lanes.values() for op in split(lane) if op.kind != "R"]
        assert len(planned) == len(set(planned)), "the same operation twice"
        assert not before & set(planned), "finished work is done again"
        world.follow(rest)
    world.run_some(random, 10 * num_operations)
    assert all(world.stepped[one] == set(held) for one, held in world.holders.items())


def split(lane):
    for op in lane:
        kinds = (Kind.B, Kind.W) if op.kind is Kind.BW else (op.kind,)
        yield from (Op(op.stage, kind, op.microbatch) for kind in kinds)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_memory_holds_with_what_is_in_it_already(seed):
    random = Random(seed)
    shape, holders, lanes = cross_routed(random)
    holders = {one: held for one, held in holders.items() if held == (one.stage,)}
    if {one.stage for one in holders} != set(range(shape.stages)):
        return
    world = World(shape, holders, {one: lanes[one] for one in holders})
    world.run_some(random, random.randint(0, 60))
    world.kill(random)
    facts = world.facts()
    in_use = {one: in_flight(facts[one]) for one in world.holders}
    limit = max(1, *in_use.values()) + random.randint(0, 2)
    rest = remainder_of_step(asked(shape, world.holders, limit=limit), world.holders, facts)
    without_backward = {
        (task.stage, task.microbatch) for task in rest.todo.tasks if task.kinds == (Kind.F,)
    }
    without_weight = {
        (task.stage, task.microbatch) for task in rest.todo.tasks if Kind.W not in task.kinds
    }
    for one, lane in rest.lanes.items():
        used = in_use[one]
        for op in lane:
            if op.kind is Kind.F:
                assert used + 1 <= limit, f"worker {one} has no room for {op}"
            place = (op.stage, op.microbatch)
            used += CHANGE[op.kind]
            used -= op.kind is Kind.F and place in without_backward
            used -= op.kind is Kind.B and place in without_weight


def in_flight(told):
    return sum(
        p in (MicrobatchProgress.FORWARDED, MicrobatchProgress.GRADED)
        for p in told.progress.values()
    )


def test_a_step_that_is_done_leaves_nothing():
    shape, holders = Shape(2, 2, 4), grid(2, 2)
    facts = {one: Facts(stepped=frozenset({one.stage})) for one in holders}
    rest = remainder_of_step(asked(shape, holders), holders, facts)
    assert all(lane == () for lane in rest.lanes.values())
    assert rest.length_s == 0


def test_lost_work_goes_to_the_holder_who_is_done_with_it_first():
    # Worker 2.0 is dead; of its peers 0.0 still has two micro-batches to do, 1.0 has none.
    shape, holders = Shape(3, 1, 6), grid(3, 1, ("2.0",))
    summed = {(0, m): MicrobatchProgress.SUMMED for m in (2, 3)}
    facts = {WorkerId(1, 0): Facts(progress=summed)}
    rest = remainder_of_step(asked(shape, holders), holders, facts)
    by_worker = {one: {op.microbatch for op in lane} - {None} for one, lane in rest.lanes.items()}
    assert {len(found) for found in by_worker.values()} == {2}
    assert by_worker[WorkerId(0, 0)] | by_worker[WorkerId(1, 0)] == {0, 1, 4, 5}


def test_a_slow_holder_gets_less_of_the_lost_work():
    shape, holders = Shape(3, 1, 9), grid(3, 1, ("2.0",))
    problem = asked(shape, holders)
    slow = tuple(m._replace(speed=0.5) if m.worker.pipeline == 0 else m for m in problem.members)
    problem = Problem(
        shape=shape, costs=problem.costs, memory=problem.memory, members=slow, two_stages=False
    )
    rest = remainder_of_step(problem, holders, {})
    num_forward = {
        one.pipeline: sum(op.kind is Kind.F for op in lane) for one, lane in rest.lanes.items()
    }
    assert num_forward == {0: 3, 1: 6}


@pytest.mark.parametrize("plain", [False, True])
def test_the_rest_is_the_same_compiled_or_plain(plain):
    random = Random(7)
    shape, holders, lanes = cross_routed(random)
    world = World(shape, holders, lanes)
    world.run_some(random, 12)
    world.kill(random)
    problem = asked(shape, world.holders)
    found = remainder_of_step(problem, world.holders, world.facts(), plain=plain)
    assert found == remainder_of_step(problem, world.holders, world.facts())


def test_a_lost_tensor_is_made_again_apart_from_the_work_that_is_pending():
    # Worker 0.1 has its W pending but did not keep the gradient that stage 0 still needs.
    shape, holders = Shape(1, 2, 1), grid(1, 2)
    facts = {WorkerId(0, 1): Facts(progress={(1, 0): MicrobatchProgress.GRADED})}
    rest = remainder_of_step(asked(shape, holders, limit=2), holders, facts)
    lane = [str(op) for op in rest.lanes[WorkerId(0, 1)]]
    assert sorted(lane) == ["1B0", "1F0", "1R", "1W0"]
    world = World(shape, holders, {})
    world.stash[WorkerId(0, 1)][1, 0] = MicrobatchProgress.GRADED
    assert [str(op) for op in rest.lanes[WorkerId(0, 0)]] == ["0F0", "0B0", "0W0", "0R"]


def test_memory_above_the_limit_is_worked_off_before_anything_new_begins():
    shape, holders = Shape(1, 1, 6), grid(1, 1)
    held = {(0, m): MicrobatchProgress.FORWARDED for m in range(4)}
    rest = remainder_of_step(
        asked(shape, holders, limit=2), holders, {WorkerId(0, 0): Facts(progress=held)}
    )
    used = 4
    for op in rest.lanes[WorkerId(0, 0)]:
        used += CHANGE[op.kind]
        assert op.kind is not Kind.F or used <= 2


def test_work_that_finds_no_room_beside_what_is_held_is_refused_in_words():
    shape, holders = Shape(1, 2, 1), grid(1, 2)
    # Forwarded, but its activation was not kept: the forward must run again where there is no room.
    facts = {WorkerId(0, 0): Facts(progress={(0, 0): MicrobatchProgress.FORWARDED})}
    with pytest.raises(MemoryExceeded, match="does not fit into memory"):
        remainder_of_step(asked(shape, holders, limit=1), holders, facts)


def test_pipelines_that_nothing_happened_to_keep_their_micro_batches():
    shape, holders = Shape(16, 4, 64), grid(16, 4, ("3.2",))
    forwarded = {(s, 4 * p): MicrobatchProgress.FORWARDED for p in range(16) for s in range(4)}
    facts = {
        one: Facts(
            progress={
                place: told
                for place, told in forwarded.items()
                if place == (one.stage, 4 * one.pipeline)
            },
            activations=frozenset({(one.stage, 4 * one.pipeline)}),
        )
        for one in holders
    }
    rest = remainder_of_step(asked(shape, holders), holders, facts)
    strangers = {
        one: [op for op in lane if op.microbatch is not None and op.microbatch // 4 != one.pipeline]
        for one, lane in rest.lanes.items()
    }
    assert {one.stage for one, ops in strangers.items() if ops} == {2}
    places = [sorted({op.microbatch for op in ops}) for ops in strangers.values() if ops]
    assert sorted(places) == [[12], [13], [14], [15]]  # one each: nobody is done later than others


def test_work_leaves_a_home_that_would_be_done_after_all_others():
    # Pipeline 0 has begun nothing, the others have one micro-batch left of four.
    shape, holders = Shape(4, 1, 16), grid(4, 1)
    summed = {
        WorkerId(p, 0): Facts(
            progress={(0, m): MicrobatchProgress.SUMMED for m in range(4 * p, 4 * p + 3)}
        )
        for p in (1, 2, 3)
    }
    rest = remainder_of_step(asked(shape, holders), holders, summed)
    numbers = [len({op.microbatch for op in lane} - {None}) for lane in rest.lanes.values()]
    assert numbers == [2, 2, 2, 1]
    assert rest.length_s == pytest.approx(6.0)


def test_a_slow_link_counts_on_the_way_and_for_what_is_sent_again():
    shape, holders = Shape(1, 2, 1), grid(1, 2)
    problem = asked(shape, holders)
    pair = (WorkerId(0, 1), WorkerId(0, 0))
    slow = replace(problem, links=LinkCosts(unusual={pair: LinkCost(5.0)}))
    kept = {
        WorkerId(0, 0): Facts(
            progress={(0, 0): MicrobatchProgress.FORWARDED}, activations=frozenset({(0, 0)})
        )
    }
    found = [remainder_of_step(one, holders, kept).length_s for one in (problem, slow)]
    # The activation is sent again, then F and B, the gradient back, then B and W.
    assert found == pytest.approx([0.1 + 2 + 0.1 + 2, 5 + 2 + 5 + 2], abs=1e-4)
