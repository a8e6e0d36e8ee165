"""The verdict on a step: one norm, the same bits for everyone, whoever holds which layers."""

import math
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from holdfast.cluster import WorkerId
from holdfast.runtime.verdict import Verdict, VerdictExchange, judge
from holdfast.schedule.schedule import Schedule, loads
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local import LocalHub, LocalTransport

TIMEOUT_S = 20.0
# Stage 0 has two holders, stage 1 three, stage 2 one: nobody has a fixed partner.
UNEVEN = """schedule pipelines=1 stages=3 microbatches=6
0.0: 0F0 0BW0 0F1 0BW1 0F2 0BW2 0R
1.0: 0F3 0BW3 0F4 0BW4 0F5 0BW5 0R
0.1: 1F0 1BW0 1F3 1BW3 1R
1.1: 1F1 1BW1 1F4 1BW4 1R
2.1: 1F2 1BW2 1F5 1BW5 1R
0.2: 2F0 2BW0 2F1 2BW1 2F2 2BW2 2F3 2BW3 2F4 2BW4 2F5 2BW5 2R
"""


def piece(*squares: float, nonfinite: bool = False) -> Tensor:
    return torch.tensor([float(nonfinite), *squares], dtype=torch.float64)


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
    pieces[stage][2] = bad
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
    ],
)
def test_only_a_norm_above_the_limit_is_clipped(clip_norm, expected):
    verdict = judge([piece(9.0), piece(16.0)], clip_norm)
    assert verdict == expected
    assert verdict.good == (expected.scale is None)


def test_a_model_without_parameters_has_norm_zero():
    assert judge([piece(), piece()], clip_norm=1.0) == Verdict(0.0, None, False)


def joined(schedule: Schedule) -> dict[WorkerId, LocalTransport]:
    hub = LocalHub()
    return {worker: LocalTransport(worker, hub) for worker in schedule.lanes}


def piece_of(stage: int) -> list[float]:
    return [0.1 * (stage + 1), 1e-9, 7.0**stage]


def test_everyone_hears_each_other_stage_exactly_once_when_holders_are_uneven():
    schedule = loads(UNEVEN)
    assert [len(schedule.holders(stage)) for stage in range(3)] == [2, 3, 1]
    transports = joined(schedule)
    exchanges = {
        worker: VerdictExchange(worker, schedule, transport, 1.0)
        for worker, transport in transports.items()
    }
    own = {w: e.tell(4, 1, False, piece_of(w.stage)) for w, e in exchanges.items()}
    for worker, transport in transports.items():
        wanted = exchanges[worker].wanted(4, 1)
        assert sorted(source.stage for source, _ in wanted) == sorted({0, 1, 2} - {worker.stage})
        assert all(transport.has(source, tag) for source, tag in wanted)
        assert transport.statistics.received_messages == 2
    verdicts = {w: e.hear(4, 1, own[w], TIMEOUT_S) for w, e in exchanges.items()}
    expected = judge([piece(*piece_of(stage)) for stage in range(3)], 1.0)
    assert set(verdicts.values()) == {expected}
    assert all(transport.statistics.unread_bytes == 0 for transport in transports.values())


def test_holders_of_a_stage_share_the_telling():
    schedule = loads(UNEVEN)
    transports = joined(schedule)
    for worker, transport in transports.items():
        VerdictExchange(worker, schedule, transport, None).tell(0, 0, False, [1.0])
    told = {str(worker): t.statistics.sent_messages for worker, t in transports.items()}
    assert told == {"0.0": 3, "1.0": 1, "0.1": 2, "1.1": 1, "2.1": 0, "0.2": 5}


def test_pieces_of_another_attempt_are_not_heard():
    schedule = loads(UNEVEN)
    transports = joined(schedule)
    exchanges = [VerdictExchange(w, schedule, t, None) for w, t in transports.items()]
    for exchange in exchanges:
        exchange.tell(2, 0, False, [100.0])
    wanted = list(chain.from_iterable(exchange.wanted(2, 1) for exchange in exchanges))
    assert {tag for _, tag in wanted} == {Tag(Channel.VERDICT, 2, 1)}
    for exchange, transport in zip(exchanges, transports.values(), strict=True):
        assert not any(transport.has(source, tag) for source, tag in exchange.wanted(2, 1))


def test_a_single_stage_needs_no_messages():
    schedule = loads("schedule pipelines=1 stages=1 microbatches=1\n0.0: 0F0 0BW0 0R\n")
    (transport,) = joined(schedule).values()
    exchange = VerdictExchange(WorkerId(0, 0), schedule, transport, None)
    own = exchange.tell(0, 0, False, [4.0])
    assert exchange.hear(0, 0, own, TIMEOUT_S) == Verdict(2.0, None, False)
    assert transport.statistics.sent_messages == 0
