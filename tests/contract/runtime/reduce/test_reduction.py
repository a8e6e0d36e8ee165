"""The direct reduction: the same bits for everyone, whoever summed what, whatever comes first."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    PeerLost,
    ProtocolError,
    TransportClosed,
)
from holdfast.runtime.reduce.buckets import Bucket, plan_buckets
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients, Gradients
from holdfast.runtime.reduce.reduction import Reduced, conclude, reduce_gradients
from holdfast.transport.base import ALONE, Bundle, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

Result = TypeVar("Result")
Contribution = Sequence[Tensor]  # one micro-batch's gradient for each slot
SHAPES = [((5,), (3, 7), (), (40,)), ((1,),), ((33, 3), (16,)), ((0, 2), (8, 8))]
TIMEOUT_S = 20.0


pytestmark = pytest.mark.usefixtures("one_thread")


def layout_of(*shapes: tuple[int, ...]) -> FlatLayout:
    return FlatLayout.of([torch.zeros(shape) for shape in shapes])


def group(num_members: int) -> list[WorkerId]:
    return [WorkerId(pipeline, 0) for pipeline in range(num_members)]


def whole(layout: FlatLayout, members: Sequence[WorkerId]) -> tuple[Bucket, ...]:
    return (Bucket(0, tuple(members), tuple((slot,) for slot in range(len(layout.slots)))),)


def exact(layout: FlatLayout, contributions: Sequence[Contribution], total: int) -> ExactGradients:
    gradients = ExactGradients(layout, total)
    for contribution in contributions:
        for slot, gradient in enumerate(contribution):
            gradients.add(slot, gradient)
    return gradients


def fast(layout: FlatLayout, contributions: Sequence[Contribution]) -> FastGradients:
    gradients = FastGradients(layout)
    for contribution in contributions:
        for slot, gradient in enumerate(contribution):
            gradients.add(slot, gradient)
    return gradients


def at_once(calls: dict[WorkerId, Callable[[], Result]]) -> dict[WorkerId, Result]:
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {worker: pool.submit(call) for worker, call in calls.items()}
        return {worker: result.result() for worker, result in running.items()}


def reduce_all(
    holdings: dict[WorkerId, tuple[Gradients, Sequence[Bucket]]],
    transport: Callable[[WorkerId, LocalHub], LocalTransport] = LocalTransport,
) -> dict[WorkerId, Reduced]:
    hub = LocalHub()
    transports = {worker: transport(worker, hub) for worker in holdings}

    def call(worker: WorkerId) -> Reduced:
        gradients, buckets = holdings[worker]
        return reduce_gradients(
            gradients,
            buckets,
            me=worker,
            transport=transports[worker],
            step=3,
            timeout_s=TIMEOUT_S,
        )

    return at_once({worker: lambda worker=worker: call(worker) for worker in holdings})


def bits(reduced: Reduced) -> tuple[object, ...]:
    return (
        reduced.flat.numpy().tobytes(),
        reduced.touched,
        reduced.nonfinite,
        np.array([reduced.squares, reduced.maxima]).tobytes(),
    )


def wild_gradient(layout: FlatLayout, rng: np.random.Generator) -> list[Tensor]:
    """Every size that fp32 has: denormals, zeros of both signs, and what no fixed point holds."""
    flat = np.ldexp(rng.uniform(-1, 1, layout.numel), rng.integers(-149, 124, layout.numel))
    flat[rng.random(layout.numel) < 0.1] = -0.0
    extremes = np.array([1e30, -1e30, 1e-30, 1e-45, 3e38, -3e38])
    chosen = rng.random(layout.numel) < 0.2
    flat[chosen] = rng.choice(extremes, chosen.sum())
    vector = torch.from_numpy(flat.astype(np.float32))
    return [layout.view(vector, slot).clone() for slot in range(len(layout.slots))]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.sampled_from(SHAPES),
    num_contributions=st.integers(1, 9),
    num_members=st.integers(1, 5),
    routing=st.randoms(use_true_random=False),
)
def test_no_order_grouping_or_number_of_members_shows_in_an_exact_sum(
    seed: int,
    shapes: tuple[tuple[int, ...], ...],
    num_contributions: int,
    num_members: int,
    routing: random.Random,
):
    layout, rng = layout_of(*shapes), np.random.default_rng(seed)
    contributions = [wild_gradient(layout, rng) for _ in range(num_contributions)]
    alone = group(1)
    calm = reduce_all({alone[0]: (exact(layout, contributions, 16), whole(layout, alone))})

    members = group(num_members)
    routing.shuffle(contributions)
    given_to: dict[WorkerId, list[Contribution]] = {member: [] for member in members}
    for contribution in contributions:
        given_to[routing.choice(members)].append(contribution)
    results = reduce_all(
        {m: (exact(layout, given_to[m], 16), whole(layout, members)) for m in members}
    )
    assert {bits(result) for result in results.values()} == {bits(calm[alone[0]])}


def test_the_wild_gradients_do_spill_and_do_differ_in_fp32():
    layout, rng = layout_of((40,)), np.random.default_rng(0)
    contributions = [wild_gradient(layout, rng) for _ in range(6)]
    assert exact(layout, contributions, 16).spilled(0).numel() > 0
    forward, backward = fast(layout, contributions), fast(layout, contributions[::-1])
    assert not torch.equal(forward.flat, backward.flat)


def test_a_sum_of_small_gradients_is_the_sum():
    layout, members = layout_of((100,), (7, 3)), group(3)
    rng = torch.Generator().manual_seed(2)
    parts = [[torch.randn(s.shape, generator=rng) for s in layout.slots] for _ in members]
    results = reduce_all(
        {
            m: (exact(layout, [p], 3), whole(layout, members))
            for m, p in zip(members, parts, strict=True)
        }
    )
    for slot, gradient in enumerate(results[members[1]].gradients()):
        expected = sum(part[slot].double() for part in parts)
        torch.testing.assert_close(gradient.double(), expected, rtol=2**-23, atol=2**-42)


@pytest.mark.parametrize("num_members", [1, 2, 3, 5])
def test_a_parameter_nobody_used_has_no_gradient_anywhere(num_members: int):
    layout, members = layout_of((4,), (4,), (4,)), group(num_members)
    holdings = {m: (ExactGradients(layout, 8), whole(layout, members)) for m in members}
    holdings[members[0]][0].add(0, torch.ones(4))
    holdings[members[-1]][0].add(2, torch.zeros(4))
    for result in reduce_all(holdings).values():
        first, second, third = result.gradients()
        assert first.tolist() == [1.0] * 4
        assert second is None
        assert third.tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", ["exact", "fast"])
@pytest.mark.parametrize("num_members", [1, 3])
def test_one_members_nan_is_known_to_all(kind: str, num_members: int):
    layout, members = layout_of((4,), (40,)), group(num_members)
    make = (lambda: ExactGradients(layout, 8)) if kind == "exact" else lambda: FastGradients(layout)
    holdings = {m: (make(), whole(layout, members)) for m in members}
    assert not any(result.nonfinite for result in reduce_all(holdings).values())
    holdings[members[-1]][0].add(1, torch.full((40,), float("nan")))
    assert all(result.nonfinite for result in reduce_all(holdings).values())


def test_a_sum_beyond_fp32_counts_as_nonfinite():
    layout, members = layout_of((1,)), group(2)
    holdings = {
        m: (exact(layout, [[torch.tensor([3e38])]], 2), whole(layout, members)) for m in members
    }
    assert all(result.nonfinite for result in reduce_all(holdings).values())


class LastComesFirst(LocalTransport):
    """Everything is there before the first choice, and the choice is the last one."""

    def wait_any(self, wanted: Sequence[tuple[WorkerId, Tag]], timeout_s: float) -> int:
        for one in wanted:
            super().wait_any([one], timeout_s)
        return len(wanted) - 1


@pytest.mark.parametrize("transport", [LocalTransport, LastComesFirst])
def test_fp32_partials_are_added_in_member_order_whatever_arrives_first(
    transport: type[LocalTransport],
):
    layout, members, rng = layout_of((50, 3), (9,)), group(4), np.random.default_rng(5)
    parts = {m: fast(layout, [wild_gradient(layout, rng)]) for m in members}
    results = reduce_all({m: (parts[m], whole(layout, members)) for m in members}, transport)
    expected = ((parts[members[0]].flat + parts[members[1]].flat) + parts[members[2]].flat) + parts[
        members[3]
    ].flat
    for result in results.values():
        assert torch.equal(result.flat, expected)
        assert bits(result) == bits(results[members[0]])


def test_a_reduced_gradient_handed_on_is_concluded_to_the_same_facts():
    layout, rng = layout_of((50, 3), (9,)), np.random.default_rng(6)
    gradients = exact(layout, [wild_gradient(layout, rng)], 4)
    result = reduce_all({group(1)[0]: (gradients, whole(layout, group(1)))})[group(1)[0]]
    handed_on = conclude(
        ExactGradients(layout, 4), result.flat.clone(), touched=result.touched, nonfinite=False
    )
    assert bits(handed_on) == bits(result)


def test_changing_the_result_changes_neither_the_accumulators_nor_other_members():
    layout, members = layout_of((64,)), group(2)
    parts = {m: exact(layout, [[torch.ones(64)]], 2) for m in members}
    results = reduce_all({m: (parts[m], whole(layout, members)) for m in members})
    before = parts[members[0]].flat.clone()
    results[members[0]].flat.mul_(0.5)
    assert results[members[1]].flat.tolist() == [2.0] * 64
    assert torch.equal(parts[members[0]].flat, before)


# --- ties: one parameter in several places ---

EMBEDDING, BODY, HEAD = (0, "weight"), (1, "weight"), (2, "weight")
SIZES = {EMBEDDING: (6, 4), BODY: (9,), HEAD: (6, 4)}
TIES = [(EMBEDDING, HEAD)]


def reduce_cut(
    slots: dict[int, list[tuple[int, str]]],
    microbatches: Sequence[dict[tuple[int, str], Tensor]],
    kind: Callable[[FlatLayout], Gradients],
) -> list[dict[tuple[int, str], Tensor]]:
    """Two pipelines cut as ``slots`` says, each with every second micro-batch."""
    holders = {stage: [WorkerId(0, stage), WorkerId(1, stage)] for stage in slots}
    holdings = {}
    for worker in (worker for workers in holders.values() for worker in workers):
        names = slots[worker.stage]
        gradients = kind(layout_of(*(SIZES[name] for name in names)))
        for microbatch in microbatches[worker.pipeline :: 2]:
            for slot, name in enumerate(names):
                gradients.add(slot, microbatch[name])
        buckets = plan_buckets(worker.stage, slots=slots, ties=TIES, holders=holders)
        holdings[worker] = (gradients, buckets)
    return [
        dict(zip(slots[worker.stage], result.gradients(), strict=True))
        for worker, result in reduce_all(holdings).items()
    ]


CUTS = [
    {0: [EMBEDDING, BODY, HEAD]},
    {0: [EMBEDDING], 1: [BODY, HEAD]},
    {0: [EMBEDDING, BODY], 1: [HEAD]},
    {0: [EMBEDDING], 1: [BODY], 2: [HEAD]},
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_tied_parameter_gets_the_same_bits_however_the_stages_are_cut(cut):
    rng = np.random.default_rng(9)
    layout = layout_of(*SIZES.values())
    microbatches = [dict(zip(SIZES, wild_gradient(layout, rng), strict=True)) for _ in range(6)]
    calm = reduce_cut(CUTS[0], microbatches, lambda layout: ExactGradients(layout, 12))[0]
    assert torch.equal(calm[EMBEDDING], calm[HEAD])
    for result in reduce_cut(cut, microbatches, lambda layout: ExactGradients(layout, 12)):
        for name, gradient in result.items():
            assert gradient.numpy().tobytes() == calm[name].numpy().tobytes()


@pytest.mark.parametrize("cut", CUTS)
def test_a_tied_parameter_is_summed_over_its_twins_in_fast_mode_too(cut):
    microbatches = [{name: torch.full(shape, 1.0) for name, shape in SIZES.items()}] * 4
    for result in reduce_cut(cut, microbatches, FastGradients):
        for name, gradient in result.items():
            assert gradient.unique().tolist() == [4.0 if name == BODY else 8.0]


def test_twins_that_disagree_are_refused():
    bucket = (Bucket(1, tuple(group(1)), ((0, 1),)),)
    with pytest.raises(ConfigError, match="different shapes"):
        reduce_all({group(1)[0]: (ExactGradients(layout_of((2,), (3,)), 2), bucket)})
    gradients = ExactGradients(layout_of((2,), (2,)), 2)
    gradients.exponents = [44, 45]
    with pytest.raises(ConfigError, match="different exponents"):
        reduce_all({group(1)[0]: (gradients, bucket)})


def test_members_with_different_exponents_are_refused():
    layout, members = layout_of((2,)), group(2)
    holdings = {m: (ExactGradients(layout, 2), whole(layout, members)) for m in members}
    holdings[members[1]][0].exponents = [40]
    with pytest.raises(ProtocolError, match=r"gradient exponents \[4"):
        reduce_all(holdings)


# --- failures ---


class ClosesItself(LocalTransport):
    """A worker that dies when it is about to send for the n-th time."""

    sends_left = 0

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        if self.sends_left == 0:
            self.close()
        self.sends_left -= 1
        super().send(to, tag, tensor, bundle)


@pytest.mark.parametrize("sends", range(6))
def test_a_reduction_that_fails_half_way_leaves_the_sums_for_another(sends: int):
    layout, members, rng = layout_of((40,), (5, 5)), group(3), np.random.default_rng(11)
    contributions = [wild_gradient(layout, rng) for _ in members]
    parts = {m: exact(layout, [c], 3) for m, c in zip(members, contributions, strict=True)}
    before = {m: [parts[m].flat.clone(), *map(parts[m].spilled, (0, 1))] for m in members}
    victim, *survivors = members
    hub = LocalHub()
    transports = {m: LocalTransport(m, hub) for m in survivors}
    transports[victim] = ClosesItself(victim, hub)
    transports[victim].sends_left = sends

    def attempt(me: WorkerId) -> Reduced | HoldfastError:
        try:
            buckets, transport = whole(layout, members), transports[me]
            return reduce_gradients(
                parts[me], buckets, me=me, transport=transport, step=0, timeout_s=TIMEOUT_S
            )
        except HoldfastError as error:
            for transport in transports.values():  # end the waits of those who miss only our result
                transport.close()
            return error

    results = at_once({m: lambda m=m: attempt(m) for m in members})
    assert isinstance(results[victim], TransportClosed)
    assert isinstance(results[survivors[1]], HoldfastError)
    assert transports[victim].sends_left < 0, "nobody died: this test proves nothing"
    for m in members:
        after = [parts[m].flat, *map(parts[m].spilled, (0, 1))]
        assert all(map(torch.equal, before[m], after))

    for slot, gradient in enumerate(contributions[0]):
        parts[survivors[0]].add(slot, gradient)
    again = reduce_all({m: (parts[m], whole(layout, survivors)) for m in survivors})
    calm = reduce_all({victim: (exact(layout, contributions, 3), whole(layout, [victim]))})
    finished = [result for result in results.values() if isinstance(result, Reduced)]
    assert {bits(result) for result in [*again.values(), *finished]} == {bits(calm[victim])}


def test_messages_of_a_reduction_broken_off_are_not_taken_for_those_of_the_next():
    layout, (first, second, victim) = layout_of((40,), (5, 5)), group(3)
    parts = {m: exact(layout, [[torch.ones(40), torch.ones(5, 5)]], 3) for m in (first, second)}
    hub = LocalHub()
    transports = {m: LocalTransport(m, hub, epoch=1) for m in (first, second)}

    def attempt(me: WorkerId, among: Sequence[WorkerId]) -> Reduced:
        return reduce_gradients(
            parts[me],
            whole(layout, among),
            me=me,
            transport=transports[me],
            step=0,
            timeout_s=TIMEOUT_S,
        )

    with pytest.raises(PeerLost):
        attempt(second, [first, second, victim])
    assert transports[first].statistics.unread_bytes > 0, "no stale message: this proves nothing"
    for transport in transports.values():
        transport.advance(2)
    parts[second].add(0, torch.ones(40))
    results = at_once({m: lambda m=m: attempt(m, [first, second]) for m in (first, second)})
    for result in results.values():
        assert [gradient.unique().tolist() for gradient in result.gradients()] == [[3.0], [2.0]]


def test_our_share_is_said_to_be_on_its_way_when_it_is_and_before_we_wait_for_others():
    layout, (first, second) = layout_of((40,)), group(2)
    hub = LocalHub()
    transport, other = LocalTransport(first, hub), LocalTransport(second, hub)
    received_at_sent: list[int] = []

    def on_sent() -> None:
        received_at_sent.append(other.statistics.received_messages)
        transport.close()  # whoever dies here has told all it had

    with pytest.raises(TransportClosed):
        reduce_gradients(
            exact(layout, [[torch.ones(40)]], 2),
            whole(layout, [first, second]),
            me=first,
            transport=transport,
            step=0,
            timeout_s=TIMEOUT_S,
            on_sent=on_sent,
        )
    assert received_at_sent == [2]


@pytest.mark.parametrize("used", [True, False])
def test_a_given_sum_is_taken_as_it_is_into_every_twin_and_its_own_sums_are_not_asked(used: bool):
    layout, (me, *_) = layout_of((4,), (9,), (4,)), group(1)
    gradients = exact(layout, [[torch.ones(4), torch.ones(9), torch.ones(4)]], 2)
    tie = Bucket(1, (me, WorkerId(0, 1)), ((0, 2),))
    values = torch.zeros_like(layout.padded(torch.zeros(layout.numel), 0))
    values[:4] = torch.tensor([7.0, -0.0, 1e-45, 3e38])
    result = reduce_gradients(
        gradients,
        [Bucket(0, (me,), ((1,),))],
        me=me,
        transport=LocalTransport(me, LocalHub()),
        step=0,
        timeout_s=TIMEOUT_S,
        given=[(tie, values, used)],
    )
    first, own, twin = result.gradients()
    assert own.tolist() == [1.0] * 9
    assert result.touched == (used, True, used)
    if used:
        assert first.numpy().tobytes() == twin.numpy().tobytes() == values[:4].numpy().tobytes()
        assert result.maxima[0] == result.maxima[2] == torch.tensor(3e38).item()


def test_buckets_are_numbered_alike_on_every_stage():
    slots = {0: [EMBEDDING, BODY], 1: [HEAD]}
    holders = {0: [WorkerId(1, 0), WorkerId(0, 0)], 1: [WorkerId(0, 1)]}
    everyone = (WorkerId(0, 0), WorkerId(0, 1), WorkerId(1, 0))
    tie = Bucket(1, everyone, ((0,),))
    own = Bucket(0, (WorkerId(0, 0), WorkerId(1, 0)), ((1,),))
    assert plan_buckets(0, slots=slots, ties=TIES, holders=holders) == (own, tie)
    assert plan_buckets(1, slots=slots, ties=TIES, holders=holders) == (tie,)
