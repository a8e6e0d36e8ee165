"""What all would tell of all: in a large run some tell of some, in a small one nothing changes."""

from holdfast.cluster import WorkerId
from holdfast.protocol.records import Transfers
from holdfast.protocol.report_limits import (
    near,
    tells_losses,
    tells_operations,
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
    assert near_ones == ["46.1", "47.1", "48.1", "49.1", "51.1", "52.1", "53.1", "54.1"]


def test_at_the_edge_the_near_ones_are_on_one_side():
    assert near(WorkerId(0, 1), column(1, 128)[1:]) == column(1, 9)[1:]


def test_up_to_512_members_everyone_tells_of_its_operations_in_each_step():
    assert all(tells_operations(WorkerId(7, 1), step, 512) for step in range(40))


def test_of_many_each_tells_of_its_operations_in_turn_after_the_first_steps():
    told = [step for step in range(40) if tells_operations(WorkerId(3, 1), step, 2048)]
    assert told == [*range(16), 17, 21, 25, 29, 33, 37]
    at_20 = [p for p in range(256) if tells_operations(WorkerId(p, 1), 20, 2048)]
    assert len(at_20) * 8 == 512
