"""All workers of a run on empty machines: room first, then stages apart, then neighbours."""

from itertools import combinations_with_replacement, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.all_placements import fewest_on_one_machine, fewest_split
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.place.machine import Machine, equal_machines, machines_of
from holdfast.planner.place.placing import place


def named(rooms):
    return [Machine(f"m{index}", room) for index, room in enumerate(rooms)]


def by_machine(pipelines, stages, rooms):
    placed = place(pipelines, stages, named(rooms)).by_machine
    return {name: " ".join(map(str, workers)) for name, workers in placed.items()}


def small_cases():
    """Every way to have up to four machines that are just large enough, or a little larger."""
    for pipelines, stages in ((1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (4, 1)):
        number = pipelines * stages
        for num_machines in (1, 2, 3, 4):
            for rooms in combinations_with_replacement(range(number + 1), num_machines):
                if number <= sum(rooms) <= number + 3:
                    yield pipelines, stages, rooms


def test_no_way_has_fewer_stages_on_one_machine():
    tried = 0
    for pipelines, stages, rooms in small_cases():
        placement = place(pipelines, stages, named(rooms))
        best = fewest_on_one_machine(pipelines, stages, rooms)
        assert len(placement.stages_on_one_machine) == best, (pipelines, stages, rooms)
        tried += 1
    assert tried > 200


def test_no_way_that_has_stages_apart_splits_fewer_neighbours():
    tried = 0
    for pipelines, stages, rooms in small_cases():
        if len(rooms) ** (pipelines * stages) > 1000:
            continue
        placement = place(pipelines, stages, named(rooms))
        alone = len(placement.stages_on_one_machine)
        best = fewest_split(pipelines, stages, rooms, alone)
        assert placement.num_split == best, (pipelines, stages, rooms)
        tried += 1
    assert tried > 100


@st.composite
def fitting(draw):
    pipelines, stages = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rooms = draw(st.lists(st.integers(0, 12), min_size=1, max_size=12))
    lacking = max(0, pipelines * stages - sum(rooms))
    return pipelines, stages, [*rooms, lacking]


@given(fitting())
def test_all_fit_and_only_stages_that_must_are_on_one_machine(case):
    pipelines, stages, rooms = case
    placement = place(pipelines, stages, named(rooms))
    assert len(placement.where) == pipelines * stages
    assert all(spare >= 0 for spare in placement.spare.values())
    # A machine that lacks a holder of every stage runs no more than this.
    most = stages * (pipelines - 1)
    must = max(0, pipelines * stages - sum(min(room, most) for room in rooms))
    assert len(placement.stages_on_one_machine) == must


@given(fitting(), st.randoms(use_true_random=False))
def test_the_same_machines_have_the_same_workers(case, chance):
    pipelines, stages, rooms = case
    machines = named(rooms)
    assert place(pipelines, stages, machines).where == place(pipelines, stages, machines).where
    chance.shuffle(machines)
    other = place(pipelines, stages, machines)
    assert len(other.stages_on_one_machine) == len(
        place(pipelines, stages, named(rooms)).stages_on_one_machine
    )


def test_pipelines_stay_whole_where_machines_are_large_enough():
    assert by_machine(2, 3, [3, 3]) == {"m0": "0.0 0.1 0.2", "m1": "1.0 1.1 1.2"}
    assert by_machine(4, 2, [4, 4]) == {"m0": "0.0 0.1 1.0 1.1", "m1": "2.0 2.1 3.0 3.1"}


def test_machines_with_more_slots_than_needed_are_equally_full():
    assert place(4, 2, named([4, 4, 4, 4])).spare == dict.fromkeys(("m0", "m1", "m2", "m3"), 2)
    assert place(3, 2, named([8, 4])).spare == {"m0": 4, "m1": 2}


def test_a_pipeline_is_cut_where_machines_are_small():
    assert by_machine(2, 4, [2, 2, 2, 2]) == {
        "m0": "0.0 0.1",
        "m1": "0.2 0.3",
        "m2": "1.0 1.1",
        "m3": "1.2 1.3",
    }
    # 3 + 1 and 2 + 2, not 3 + 2, 2 + 1: no machine begins one pipeline and ends another.
    assert place(2, 4, named([3, 2, 2, 1])).num_split == 2


@pytest.mark.parametrize("rooms", sorted(set(permutations([6, 1, 1]))))
def test_a_machine_that_could_take_all_leaves_a_holder_of_each_stage_to_the_others(rooms):
    placement = place(3, 2, named(rooms))
    assert placement.stages_on_one_machine == ()
    assert max(len(workers) for workers in placement.by_machine.values()) == 4


def test_the_reason_says_what_cannot_be_helped():
    assert place(2, 2, named([2, 2])).reason == (
        "every stage is on two machines or more; every pipeline is on one machine; 0 slots are "
        "spare"
    )
    assert place(2, 4, named([7, 1, 0])).reason == (
        "stages 0-2 are on one machine only, which cannot be helped: besides m0 there is room for "
        "1 of 4 stages; 1 of 6 neighbours of a pipeline are on two machines; 0 slots are spare"
    )
    assert place(1, 2, named([1, 2])).reason == (
        "stages 0-1 are on one machine only, which cannot be helped: there is one pipeline; every "
        "pipeline is on one machine; 1 slot is spare"
    )


# --- memory ---


def test_a_machine_runs_no_more_workers_than_its_memory_holds():
    machines = [Machine("small", 4, 25), Machine("large", 4, 1000), Machine("any", 4)]
    placement = place(4, 2, machines, stage_memory_bytes=10)
    assert {name: len(workers) for name, workers in placement.by_machine.items()} == {
        "small": 2,
        "large": 4,
        "any": 2,
    }
    assert placement.spare == {"small": 0, "large": 0, "any": 2}


@pytest.mark.parametrize(
    ("machines", "memory_bytes", "said"),
    [
        (
            [Machine("a", 2), Machine("b", 1)],
            None,
            "machines: a has 2 slots, b has 1 slot: room for 3 workers: expected room for 4",
        ),
        (
            [Machine("a", 2, 100), Machine("b", 2, 15)],
            10,
            "machines: a has 2 slots, b has memory for 1 of its 2 slots: room for 3 workers of 10 "
            "bytes each: expected room for 4",
        ),
        ([Machine("a", 4)], -1, "stage_memory_bytes=-1: expected 0 or more"),
        ([], None, "machines: 0 are given: expected 1 to 4,096"),
        ([Machine("a", 2)] * 2, None, "machines: a is given twice: expected it once"),
    ],
)
def test_what_does_not_fit_is_said_with_the_machine_and_the_numbers(machines, memory_bytes, said):
    with pytest.raises(ConfigError) as raised:
        place(2, 2, machines, stage_memory_bytes=memory_bytes)
    assert str(raised.value) == said


def test_many_machines_that_are_too_small_are_not_all_named():
    with pytest.raises(ConfigError, match="m7 has 1 slot and 12 more: room for 20 workers: exp"):
        place(7, 3, named([1] * 20))


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (-1, 2)])
def test_a_run_has_workers(shape):
    with pytest.raises(ConfigError, match="expected at least 1 x 1"):
        place(*shape, named([4]))


# --- machines ---


def test_equal_machines_share_the_workers():
    assert [machine.slots for machine in equal_machines(5, 12)] == [3, 3, 2, 2, 2]
    assert machines_of(2, 4) == (Machine("m0", 2), Machine("m1", 2))
    assert machines_of({"a": 1, "b": 3}, 4) == (Machine("a", 1), Machine("b", 3))


@pytest.mark.parametrize("number", [0, -1, 5])
def test_no_machine_is_without_workers(number):
    with pytest.raises(ConfigError, match=f"machines={number}: expected 1 to 4 for 4 workers"):
        equal_machines(number, 4)


@pytest.mark.parametrize(
    ("name", "slots", "memory_bytes", "said"),
    [
        ("a/b", 1, None, "name 'a/b': expected a machine's name"),
        ("", 1, None, "name '': expected"),
        ("a", -1, None, "a has -1 slots: expected 0 to 4,096"),
        ("a", 5000, None, "a has 5000 slots: expected 0 to 4,096"),
        ("a", 1, -5, "a has -5 bytes of memory: expected 0 or more"),
    ],
)
def test_a_machine_has_a_name_and_possible_numbers(name, slots, memory_bytes, said):
    with pytest.raises(ConfigError, match=said):
        Machine(name, slots, memory_bytes)


# --- large runs ---


@pytest.mark.parametrize(
    ("pipelines", "stages", "number", "num_split"),
    [(64, 16, 128, 64), (64, 64, 512, 448), (512, 8, 512, 0)],
)
def test_thousands_of_workers_are_placed(pipelines, stages, number, num_split):
    placement = place(pipelines, stages, equal_machines(number, pipelines * stages))
    assert placement.stages_on_one_machine == ()
    assert placement.num_split == num_split
    assert placement.where[WorkerId(0, 0)] == "m0"
