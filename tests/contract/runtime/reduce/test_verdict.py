"""The verdict on a step: one norm, the same bits for everyone, whoever holds which layers."""

import math
from functools import partial
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.verdict import Verdict, VerdictExchange, judge, make_piece
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

TIMEOUT_S = 20.0
# Stage 0 has two holders, stage 1 three, stage 2 one: nobody has a fixed partner.
UNEVEN = [
    [WorkerId(0, 0), WorkerId(1, 0)],
    [WorkerId(0, 1), WorkerId(1, 1), WorkerId(2, 1)],
    [WorkerId(0, 2)],
]


def piece(*squares: float, nonfinite: bool = False, weight: float = 1.0) -> Tensor:
    return make_piece(nonfinite, squares, weight)


def gradients(seed: int, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(8, 4), (4,), (16, 3), (3,), (5, 5, 2)]
    return [torch.randn(shape, generator=generator) * scale for shape in shapes]


def squares(given: list[Tensor]) -> list[float]:
    return [gradient.double().square().sum().item() for gradient in given]


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize("seed", [0, 1])
def test_norm_and_clipping_are_torchs_to_rounding(seed, scale):
    given = gradients(seed, scale)
    verdict = judge([piece(*squares(given))], clip_norm=1.0)
    twins = [nn.Parameter(torch.zeros_like(gradient)) for gradient in given]
    for twin, gradient in zip(twins, given, strict=True):
        twin.grad = gradient.clone()
    torch_norm = nn.utils.clip_grad_norm_(twins, max_norm=1.0)
    torch.testing.assert_close(torch.tensor(verdict.norm), torch_norm.double(), check_dtype=False)
    assert (verdict.scale is not None) == (scale >= 0.1)
    for twin, gradient in zip(twins, given, strict=True):
        clipped = gradient if verdict.scale is None else gradient * verdict.scale
        torch.testing.assert_close(clipped, twin.grad)


def test_the_norm_has_the_same_bits_however_the_layers_are_cut():
    values = [10.0 ** (8 - 5 * i) / 3 for i in range(7)] * 3  # a sum that depends on its order
    assert sum(values) != sum(reversed(values))
    whole = judge([piece(*values)], clip_norm=None).norm
    for first in range(1, len(values) - 1):
        for second in range(first, len(values)):
            cut = [values[:first], values[first:second], values[second:]]
            assert judge([piece(*part) for part in cut], None).norm == whole


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_nan_or_infinity_in_any_stage_leaves_the_step_out(bad, stage):
    pieces = [piece(1.0, 2.0) for _ in range(3)]
    pieces[stage] = piece(1.0, bad)
    verdict = judge(pieces, clip_norm=1.0)
    assert (verdict.skip, verdict.scale, verdict.good) == (True, None, False)
    assert not math.isfinite(verdict.norm)


def test_a_stage_that_saw_a_nonfinite_contribution_leaves_the_step_out_for_all():
    verdict = judge([piece(1.0), piece(0.0, nonfinite=True)], clip_norm=None)
    assert (verdict.skip, verdict.norm) == (True, 1.0)


@pytest.mark.parametrize(
    ("clip_norm", "expected"),
    [
        (None, Verdict(5.0, None, False)),
        (5.0, Verdict(5.0, None, False)),
        (6.0, Verdict(5.0, None, False)),
        (2.5, Verdict(5.0, 2.5 / (5.0 + 1e-6), False)),
        (4.999, Verdict(5.0, 4.999 / (5.0 + 1e-6), False)),
    ],
)
def test_only_a_norm_above_the_limit_is_clipped(clip_norm, expected):
    verdict = judge([piece(9.0), piece(16.0)], clip_norm)
    assert verdict == expected
    assert verdict.good == (expected.scale is None)


@pytest.mark.parametrize(
    ("clip_norm", "expected"),
    [
        (None, Verdict(1.25, 0.25, False)),
        (1.25, Verdict(1.25, 0.25, False)),
        (1.0, Verdict(1.25, 1.0 / (1.25 + 1e-6) / 4.0, False)),
    ],
)
def test_the_mean_weight_divides_norm_and_gradient_before_they_are_clipped(clip_norm, expected):
    verdict = judge([piece(9.0), piece(16.0, weight=4.0)], clip_norm)
    assert verdict == expected
    assert not verdict.good
    assert verdict.is_clipped(clip_norm) == (clip_norm == 1.0)


def test_a_step_without_any_weight_is_left_out_and_told_from_one_with_nan():
    empty = judge([piece(0.0), piece(0.0, weight=0.0)], clip_norm=1.0)
    assert (empty.skip, empty.is_empty, empty.is_clipped(1.0)) == (True, True, False)
    for bad in (piece(0.0, nonfinite=True), piece(math.nan)):
        verdict = judge([bad, piece(0.0, weight=0.0)], clip_norm=1.0)
        assert (verdict.skip, verdict.is_empty) == (True, False)


def test_a_model_without_parameters_has_norm_zero():
    assert judge([piece(), piece()], clip_norm=1.0) == Verdict(0.0, None, False)


Holders = list[list[WorkerId]]
made = partial(VerdictExchange, timeout_s=TIMEOUT_S)


def joined(holders: Holders, known=None) -> dict[WorkerId, tuple[VerdictExchange, LocalTransport]]:
    hub = LocalHub()
    transports = {worker: LocalTransport(worker, hub) for worker in chain.from_iterable(holders)}
    return {
        worker: (made(worker, worker.stage, holders, transport, 1.0, known), transport)
        for worker, transport in transports.items()
    }


def piece_of(stage: int) -> Tensor:
    return make_piece(False, [0.1 * (stage + 1), 1e-9, 7.0**stage])


def test_everyone_hears_each_other_stage_exactly_once_when_holders_are_uneven():
    members = joined(UNEVEN)
    for worker, (exchange, _) in members.items():
        exchange.tell(4, 1, piece_of(worker.stage))
    for worker, (exchange, transport) in members.items():
        wanted = exchange.wanted(4, 1)
        assert sorted(source.stage for source, _ in wanted) == sorted({0, 1, 2} - {worker.stage})
        assert all(transport.has(source, tag) for source, tag in wanted)
        assert transport.statistics.received_messages == 2
    verdicts = {
        exchange.hear(4, 1, piece_of(worker.stage)) for worker, (exchange, _) in members.items()
    }
    assert verdicts == {judge([piece_of(stage) for stage in range(3)], 1.0)}
    assert all(transport.statistics.unread_bytes == 0 for _, transport in members.values())


def test_holders_of_a_stage_share_the_telling():
    members = joined(UNEVEN)
    for exchange, _ in members.values():
        exchange.tell(0, 0, piece(1.0))
    told = {str(worker): t.statistics.sent_messages for worker, (_, t) in members.items()}
    assert told == {"0.0": 3, "1.0": 1, "0.1": 2, "1.1": 1, "2.1": 0, "0.2": 5}


def test_pieces_of_another_attempt_are_not_heard():
    members = joined(UNEVEN)
    for exchange, _ in members.values():
        exchange.tell(2, 0, piece(100.0))
    for exchange, transport in members.values():
        wanted = exchange.wanted(2, 1)
        assert {tag for _, tag in wanted} == {Tag(Channel.VERDICT, 2, 1)}
        assert not any(transport.has(source, tag) for source, tag in wanted)


def test_a_single_stage_needs_no_messages():
    ((exchange, transport),) = joined([[WorkerId(0, 0)]]).values()
    exchange.tell(0, 0, piece(0.25))
    assert exchange.hear(0, 0, piece(0.25)) == Verdict(0.5, None, False)
    assert transport.statistics.sent_messages == 0


def test_a_verdict_that_is_known_is_neither_told_nor_waited_for_and_others_are():
    known = Verdict(3.0, 0.25, False)
    members = joined(UNEVEN, {4: known})
    for exchange, transport in members.values():
        exchange.tell(4, 0, piece(1.0))
        assert exchange.wanted(4, 0) == []
        assert exchange.hear(4, 0, piece(1.0)) == known
        assert transport.statistics.sent_messages == 0
        assert len(exchange.wanted(5, 0)) == 2
    for exchange, _ in members.values():
        exchange.tell(5, 0, piece(1.0))
    assert sum(t.statistics.received_messages for _, t in members.values()) == 12


def test_which_name_holds_which_stage_is_what_the_holders_say():
    moved = WorkerId(1, 0)  # its name says stage 0
    hub = LocalHub()
    holders = [[WorkerId(0, 0)], [WorkerId(0, 1), moved]]
    exchange = made(moved, 1, holders, LocalTransport(moved, hub), None)
    assert exchange.wanted(0, 0) == [(WorkerId(0, 0), Tag(Channel.VERDICT, 0, 0))]


def test_a_piece_says_nonfinite_first_then_the_mean_weight_and_the_squares_exactly():
    assert make_piece(True, [0.1, 1e300]).tolist() == [1.0, 1.0, 0.1, 1e300]
    assert make_piece(False, [], 0.3).tolist() == [0.0, 0.3]
