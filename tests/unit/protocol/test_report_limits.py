"""What all would tell of all: in a large run some tell of some, in a small one nothing changes."""

from holdfast.cluster import WorkerId
from holdfast.protocol.records import OperationTime, Transfers
from holdfast.protocol.report_limits import (
    near,
    tells_losses,
    tells_operations,
    told_operations,
    told_transfers,
)


def column(stage: int, pipelines: int) -> list[WorkerId]:
    return [WorkerId(pipeline, stage) for pipeline in range(pipelines)]


def transfers(sources: list[WorkerId], purpose: str) -> list[Transfers]:
    return [Transfers(str(source), purpose, 1, 10, 0.1) for source in sources]


def test_up_to_eight_holders_of_the_last_stage_all_tell_the_losses():
    holders = column(3, 8)
    assert all(tells_losses(worker, holders) for worker in holders)


def test_of_many_holders_four_tell_the_losses_and_no_two_are_neighbours():
    holders = column(3, 128)
    tellers = [worker.pipeline for worker in holders if tells_losses(worker, holders)]
    assert tellers == [0, 32, 64, 96]


def test_who_holds_another_stage_is_not_kept_from_telling():
    assert tells_losses(WorkerId(5, 0), column(3, 128))


def test_few_transfers_are_all_told():
    all_of_them = transfers(column(1, 9)[1:], "reduction")
    assert told_transfers(WorkerId(0, 1), all_of_them) == all_of_them


def test_of_many_only_those_from_near_are_told_and_of_the_pipeline_and_probes_all():
    me = WorkerId(50, 1)
    ring = transfers([w for w in column(1, 128) if w != me], "reduction")
    others = [*transfers([WorkerId(50, 0), WorkerId(50, 2)], "pipeline")]
    probes = transfers([WorkerId(90, 1)], "probe")
    told = told_transfers(me, [*others, *ring, *probes])
    assert [one for one in told if one.purpose != "reduction"] == [*others, *probes]
    near_ones = [one.source for one in told if one.purpose == "reduction"]
    assert near_ones == ["48.1", "49.1", "51.1", "52.1"]


def test_at_the_edge_the_near_ones_are_on_one_side():
    assert near(WorkerId(0, 1), column(1, 128)[1:]) == column(1, 5)[1:]


def test_up_to_256_members_everyone_tells_of_its_operations_in_each_step():
    assert all(tells_operations(WorkerId(7, 1), step, 256) for step in range(40))


def test_of_many_each_tells_of_its_operations_in_turn_after_the_first_steps():
    told = [step for step in range(40) if tells_operations(WorkerId(3, 1), step, 1024)]
    assert told == [*range(16), 16, 20, 24, 28, 32, 36]
    at_20 = [p for p in range(128) if tells_operations(WorkerId(p, 1), 20, 1024)]
    assert len(at_20) * 8 == 256


def test_neighbours_tell_in_the_same_step_so_that_a_link_is_seen_both_ways():
    at_20 = [p for p in range(20) if tells_operations(WorkerId(p, 1), 20, 1024)]
    assert at_20 == [0, 1, 2, 3, 16, 17, 18, 19]


def operations(took_s: dict[str, float]) -> list[OperationTime]:
    return [OperationTime(op, 10.0, 10.0 + s, s, 64) for op, s in took_s.items()]


ONE_STEP = operations(
    {"1F0": 3.0, "1F1": 9.0, "1B0": 5.0, "1F2": 1.0, "1B1": 2.0, "2F0": 8.0, "1R": 7.0}
)


def test_in_its_turn_a_worker_tells_of_the_typical_operation_of_each_stage_and_kind():
    told = told_operations(WorkerId(3, 1), 20, 1024, ONE_STEP)
    assert [one.op for one in told] == ["1F0", "1B1", "2F0"]
    assert all(one in ONE_STEP for one in told)


def test_in_every_eighth_turn_it_tells_of_all_and_between_turns_of_none():
    me = WorkerId(3, 1)
    numbers = {step: len(told_operations(me, step, 1024, ONE_STEP)) for step in range(16, 68)}
    assert [step for step, number in numbers.items() if number == len(ONE_STEP)] == [32, 64]
    typical = [step for step, number in numbers.items() if number == 3]
    assert typical == [16, 20, 24, 28, *range(36, 64, 4)]


def test_up_to_256_members_and_in_the_first_steps_all_is_told():
    me = WorkerId(3, 1)
    assert all(told_operations(me, step, 256, ONE_STEP) == ONE_STEP for step in range(40))
    assert all(told_operations(me, step, 4096, ONE_STEP) == ONE_STEP for step in range(16))


def test_whoever_has_run_nothing_has_nothing_typical():
    assert told_operations(WorkerId(3, 1), 20, 1024, []) == []
