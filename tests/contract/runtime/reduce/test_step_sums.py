"""Losses, tokens and changes of buffers: the same totals for every holder, whoever ran what."""

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast
from holdfast.runtime.reduce.step_sums import StepSums, Totals, decode_totals, encode_totals
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 20.0
MICROBATCHES = 6
SHAPES = {
    "1.running_mean": torch.Size([3]),
    "1.num_batches_tracked": torch.Size([]),
    "2.mask": torch.Size([2, 2]),  # no forward ever writes to it
    "2.table": torch.Size([2, 2]),
}
TAG = Tag(Channel.NOTES, 5, 1)
Sent = tuple[list[int], StepSums]


def changes(microbatch: int) -> dict[str, Tensor]:
    """On a grid, as real ones are: sums of them are exact."""
    generator = torch.Generator().manual_seed(microbatch)
    table = torch.randint(-1000, 1000, (2, 2), generator=generator)
    return {
        "1.running_mean": torch.randint(-(2**20), 2**20, (3,), generator=generator) / 2.0**30,
        "1.num_batches_tracked": torch.tensor(1.0),
        "2.table": table / 1024.0,
    }


def loss_of(microbatch: int) -> float:
    return math.nan if microbatch == 4 else (microbatch + 1) / 3


def sums_of(microbatches: Sequence[int], *, is_last: bool = True) -> StepSums:
    sums = StepSums(MICROBATCHES, SHAPES, is_last=is_last)
    for microbatch in microbatches:
        sums.add({key: change.double() for key, change in changes(microbatch).items()})
        if is_last:
            sums.add_loss(microbatch, loss_of(microbatch), 10 + microbatch)
    return sums


def group(number: int) -> list[WorkerId]:
    return [WorkerId(pipeline, 1) for pipeline in range(number)]


def all_totals(parts: Sequence[StepSums]) -> list[Totals]:
    members, hub = group(len(parts)), LocalHub()
    transports = [LocalTransport(member, hub) for member in members]
    with ThreadPoolExecutor(len(parts)) as pool:
        running = [
            pool.submit(sums.totals, members, member, transport, TAG, LIMIT_S)
            for sums, member, transport in zip(parts, members, transports, strict=True)
        ]
        return [one.result(LIMIT_S) for one in running]


def bits(totals: Totals) -> tuple[object, ...]:
    values = {key: change.numpy().tobytes() for key, change in totals.changes.items()}
    return list(values.items()), repr(totals.losses), totals.num_tokens


def alone() -> Totals:
    return all_totals([sums_of(range(MICROBATCHES))])[0]


@pytest.mark.parametrize(
    "routing",
    [
        [[0, 1, 2], [3, 4, 5]],
        [[5, 0], [4, 1], [2, 3]],
        [[], [3, 1, 2, 0, 5, 4]],
        [[2], [], [5, 4, 3, 1, 0], []],
    ],
    ids=["halves", "thirds", "one idle", "two idle"],
)
def test_whoever_ran_what_all_holders_have_the_totals_of_one_that_ran_all(routing):
    totals = all_totals([sums_of(microbatches) for microbatches in routing])
    assert {repr(bits(one)) for one in totals} == {repr(bits(alone()))}


def test_the_totals_are_the_losses_the_tokens_and_the_mean_of_the_changes():
    totals = alone()
    assert list(totals.losses) == list(range(MICROBATCHES))
    assert [totals.losses[m] for m in (0, 1, 5)] == [1 / 3, 2 / 3, 2.0]
    assert math.isnan(totals.losses[4])
    assert totals.num_tokens == sum(10 + m for m in range(MICROBATCHES))
    expected = sum(changes(m)["2.table"].double() for m in range(MICROBATCHES)) / MICROBATCHES
    assert torch.equal(totals.changes["2.table"], expected)
    assert totals.changes["1.num_batches_tracked"] == 1.0


def test_no_order_of_adding_shows():
    orders = itertools.islice(itertools.permutations(range(MICROBATCHES)), 0, 720, 37)
    assert len({repr(bits(all_totals([sums_of(order)])[0])) for order in orders}) == 1


def test_a_buffer_that_nobody_wrote_is_not_among_the_changes():
    for totals in all_totals([sums_of([0, 1]), sums_of([])]):
        assert list(totals.changes) == sorted(set(SHAPES) - {"2.mask"})
    assert all_totals([sums_of([]), sums_of([])])[0] == Totals()


def test_a_stage_with_neither_buffers_nor_losses_sends_nothing():
    hub, (me, other) = LocalHub(), group(2)
    transport = LocalTransport(me, hub)
    LocalTransport(other, hub)
    sums = StepSums(MICROBATCHES, {}, is_last=False)
    assert sums.totals([me, other], me, transport, TAG, LIMIT_S) == Totals()
    assert transport.statistics.sent_messages == 0


def test_a_stage_without_buffers_still_shares_its_losses_if_it_is_the_last():
    parts = [StepSums(MICROBATCHES, {}, is_last=True) for _ in range(2)]
    parts[1].add_loss(3, 0.1, 7)
    assert all_totals(parts) == [Totals({}, {3: 0.1}, 7)] * 2


def test_totals_that_were_broken_off_can_be_asked_for_again():
    hub, (me, other) = LocalHub(), group(2)
    mine, theirs = LocalTransport(me, hub), LocalTransport(other, hub)
    sums, rest = sums_of([0, 1, 2]), sums_of([3, 4, 5])
    mine.interrupt(1)
    with pytest.raises(EpochPast):
        sums.totals([me, other], me, mine, TAG, LIMIT_S)
    for transport in (mine, theirs):
        transport.advance(1)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(one.totals, [me, other], worker, transport, TAG, LIMIT_S)
            for one, worker, transport in [(sums, me, mine), (rest, other, theirs)]
        ]
        assert {repr(bits(one.result(LIMIT_S))) for one in running} == {repr(bits(alone()))}


def test_a_new_step_begins_with_nothing():
    sums = sums_of(range(MICROBATCHES))
    sums.clear()
    assert all_totals([sums]) == [Totals()]


def test_what_is_written_down_is_read_back_with_all_its_bits():
    totals = alone()
    again = decode_totals(encode_totals(totals, sorted(SHAPES)), SHAPES)
    assert bits(again) == bits(totals)
    assert {key: change.shape for key, change in again.changes.items()} == {
        key: SHAPES[key] for key in totals.changes
    }
    assert decode_totals(encode_totals(Totals(), []), {}) == Totals()
