"""Missing workers beside those that run: nobody moves who need not, stages stay apart."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.all_placements import all_counts, num_on_one_machine
from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ConfigError
from holdfast.planner.place.machine import Machine
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.placing import place
from holdfast.planner.place.refilling import MachineMove, refill


def on(**machines):
    """``a="0.0 0.1"``: who runs where."""
    return {parse_worker(word): name for name, words in machines.items() for word in words.split()}


def slots(**numbers):
    return tuple(Machine(name, number) for name, number in numbers.items())


def words(workers):
    return " ".join(map(str, sorted(workers)))


# --- against all ways ---


@st.composite
def standing(draw):
    """Some workers of a small run on some machines, with room for all."""
    pipelines, stages = draw(st.sampled_from([(2, 2), (2, 3), (3, 2), (4, 1), (4, 2), (2, 4)]))
    number = draw(st.integers(1, 4))
    everyone = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    homes = {worker: draw(st.integers(-2, number - 1)) for worker in everyone}
    kept = {worker: f"m{home}" for worker, home in homes.items() if home >= 0}
    load = Counter(kept.values())
    free = [draw(st.integers(0, 3)) for _ in range(number)]
    free[-1] += max(0, len(everyone) - len(kept) - sum(free))
    machines = tuple(Machine(f"m{i}", load[f"m{i}"] + more) for i, more in enumerate(free))
    hot = {f"m{i}": draw(st.integers(0, more)) for i, more in enumerate(free)}
    return MachinePlacement(pipelines, stages, machines, kept), hot


def counted(placement):
    """[stage][machine]"""
    number = {machine.name: index for index, machine in enumerate(placement.machines)}
    counts = np.zeros((placement.stages, len(number)), int)
    for worker, name in placement.where.items():
        counts[placement.stage_of(worker), number[name]] += 1
    return counts


def cost_of(counts, kept, hot):
    counts = np.array(counts)
    moves = int(np.maximum(kept - counts, 0).sum())
    cold = int(np.maximum((counts - kept).sum(0) - hot, 0).sum())
    return num_on_one_machine(counts.tolist()), moves, cold


def assert_no_way_is_better(before, hot, may_move):
    """By stages apart, then moves, then hot spares."""
    after = refill(before, before.machines, hot_spares=hot, may_move=may_move)
    kept, spares = counted(before), np.array(list(hot.values()))
    rooms = [machine.slots for machine in before.machines]
    best = min(
        cost_of(counts, kept, spares)
        for counts in all_counts([before.pipelines] * before.stages, rooms)
        if may_move or (np.array(counts) >= kept).all()
    )
    assert cost_of(counted(after.placement), kept, spares) == best
    assert (len(after.moves), after.waiting) == (best[1], ())
    assert all(spare >= 0 for spare in after.placement.spare.values())
    assert after.starts.keys() == after.placement.where.keys() - before.where.keys()
    assert after.starts.items() <= after.placement.where.items()


@settings(max_examples=150)
@given(standing(), st.booleans())
def test_no_way_to_fill_in_is_better(case, may_move):
    assert_no_way_is_better(*case, may_move)


@pytest.mark.wide
@settings(max_examples=2000)
@given(standing(), st.booleans())
def test_no_way_to_fill_in_is_better_in_many_more_cases(case, may_move):
    assert_no_way_is_better(*case, may_move)


@settings(max_examples=100)
@given(standing())
def test_placed_beside_those_that_stay_nobody_else_has_moved(case):
    before, _ = case
    after = place(before.pipelines, before.stages, before.machines, taken=before.where)
    assert before.where.items() <= after.where.items()
    assert len(after.where) == before.pipelines * before.stages
    same = refill(before, before.machines, may_move=False)
    assert len(after.stages_on_one_machine) == len(same.placement.stages_on_one_machine)


@settings(max_examples=100)
@given(standing(), st.data())
def test_after_any_loss_of_a_placed_machine_stages_stay_apart_if_that_is_possible(case, data):
    machines = case[0].machines
    before = place(case[0].pipelines, case[0].stages, machines)
    gone = data.draw(st.sampled_from(machines))
    left = [machine for machine in machines if machine != gone]
    assume(left)
    after = refill(before, left)
    number = before.pipelines * before.stages
    assert len(after.starts) == min(
        len(before.by_machine[gone.name]), sum(before.spare[machine.name] for machine in left)
    )
    assert len(after.placement.where) + len(after.waiting) == number
    if not after.waiting:
        again = place(before.pipelines, before.stages, left)
        now = len(after.placement.stages_on_one_machine)
        assert now == len(again.stages_on_one_machine)


# --- one by one ---


def test_a_machine_that_comes_gets_the_missing_pipeline_and_nobody_moves():
    before = place(4, 2, slots(a=2, b=2, c=2, d=2))
    after = refill(before, slots(a=2, c=2, d=2, e=2))
    assert after.starts == on(e="1.0 1.1")
    assert (after.moves, after.waiting) == ((), ())
    assert after.reason.startswith("1.0, 1.1 to be started on e; every stage is on two machines")


def test_a_machine_that_comes_changes_nothing_if_nobody_is_missing():
    before = place(2, 2, slots(a=2, b=2))
    after = refill(before, slots(a=2, b=2, c=4))
    assert (after.placement.where, after.starts, after.moves) == (before.where, {}, ())


def test_hot_spares_are_used_before_free_slots_even_far_from_neighbours():
    before = MachinePlacement(2, 2, slots(a=2, b=2, c=2), on(a="0.0", b="1.0 1.1"))
    assert refill(before, before.machines).starts == on(a="0.1")
    assert refill(before, before.machines, hot_spares={"c": 1}).starts == on(c="0.1")


def test_a_hot_spare_that_would_put_a_stage_on_one_machine_is_not_used():
    before = MachinePlacement(2, 1, slots(a=2, b=1), on(a="0.0"))
    assert refill(before, slots(a=2, b=1), hot_spares={"a": 1}).starts == on(b="1.0")


def test_one_worker_moves_if_only_that_keeps_a_stage_off_one_machine():
    # The only free slot is beside the last holders of stage 1.
    before = MachinePlacement(3, 2, slots(a=3, b=3), on(a="0.1 1.1", b="0.0 1.0 2.0"))
    kept = refill(before, before.machines, may_move=False)
    assert kept.placement.stages_on_one_machine == (0, 1)
    moved = refill(before, before.machines)
    assert moved.placement.stages_on_one_machine == ()
    assert len(moved.moves) == 1
    [move] = moved.moves
    assert move == MachineMove(move.worker, "b", "a")
    assert f"{move.worker} to be moved, so that fewer stages are on one machine" in moved.reason


def test_without_room_for_all_the_stages_with_the_fewest_holders_come_first():
    before = MachinePlacement(3, 2, slots(a=3, b=3), on(a="0.0 1.0 2.0", b="0.1 1.1 2.1"))
    after = refill(before, slots(a=4))
    assert words(after.starts) == "0.1"
    assert words(after.waiting) == "1.1 2.1"
    assert "no room for 1.1, 2.1" in after.reason


def test_a_dead_worker_is_started_where_its_neighbours_are():
    before = place(2, 3, slots(a=4, b=4))
    after = refill(before, before.machines, dead=[WorkerId(1, 1)])
    assert after.starts == {WorkerId(1, 1): before.where[WorkerId(1, 0)]}


def test_who_holds_another_stage_than_its_name_says_counts_there():
    held = {WorkerId(1, 0): 1}
    before = MachinePlacement(2, 2, slots(a=3, b=3), on(a="0.0 1.0", b="0.1 1.1"), held=held)
    assert before.stages_on_one_machine == (0,)
    after = refill(before, before.machines, dead=[WorkerId(0, 1), WorkerId(1, 1)])
    assert after.placement.held == held
    assert Counter(map(after.placement.stage_of, after.placement.where)) == {0: 1, 1: 3}
    assert after.placement.stages_on_one_machine == (0,)


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (on(z="0.0"), "taken: 0.0 runs on z: expected one of the machines"),
        (on(a="5.0"), "taken: no such worker: 5.0: expected 0.0 to 1.1"),
        (on(b="0.0 0.1 1.0"), "taken: b runs 3 workers and has room for 2: expected no more"),
    ],
)
def test_workers_that_cannot_be_there_are_refused(taken, said):
    with pytest.raises(ConfigError, match=said):
        place(2, 2, slots(a=2, b=2), taken=taken)


@pytest.mark.parametrize("hot", [{"z": 1}, {"a": 3}, {"a": -1}])
def test_hot_spares_that_cannot_be_there_are_refused(hot):
    before = place(1, 2, slots(a=2))
    with pytest.raises(ConfigError, match="expected a machine that has room for them"):
        refill(before, before.machines, hot_spares=hot)


def test_a_machine_that_comes_back_smaller_than_what_it_runs_is_refused():
    before = place(2, 2, slots(a=2, b=2))
    with pytest.raises(ConfigError, match="a runs 2 workers: expected at least so many slots"):
        refill(before, slots(a=1, b=2))


def test_thousands_of_workers_are_filled_in_beside_others():
    machines = tuple(Machine(f"m{index}", 9) for index in range(512))
    before = place(64, 64, machines)
    after = refill(before, machines[1:])
    assert len(after.starts) == len(before.by_machine["m0"])
    assert (after.moves, after.placement.stages_on_one_machine) == ((), ())
    half = {w: name for w, name in before.where.items() if int(name[1:]) % 2}
    again = place(64, 64, machines, taken=half)
    assert again.stages_on_one_machine == ()
    assert again.num_split == before.num_split
