"""A step's result and its verdict on the wire: every bit, in one go or broken off between."""

import math

import pytest
import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, ProtocolError, WaitTimeout
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.reduce.step_sums import Totals
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.state.results import (
    Arrivals,
    BegunAnew,
    StageForm,
    receive_result,
    receive_tied,
    result_messages,
    send_tied,
)
from holdfast.runtime.update.commit import StepResult
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

GIVER, TAKER = WorkerId(0, 0), WorkerId(1, 0)
LIMIT_S, NO_TIME_S = 20.0, 0.0
LAYOUT = FlatLayout.of([torch.zeros(5), torch.zeros(3, 7), torch.zeros(())])
FORM = StageForm(LAYOUT, {"1.mean": torch.Size([2, 2]), "1.seen": torch.Size([])})


def result(step: int = 4, attempt: int = 0, *, nonfinite: bool = False) -> StepResult:
    flat = torch.zeros(LAYOUT.numel)
    LAYOUT.view(flat, 0).copy_(torch.tensor([1e-45, -0.0, 3e38, 1 / 3, -7.0]))
    LAYOUT.view(flat, 1).copy_(torch.randn(3, 7, generator=torch.Generator().manual_seed(step)))
    if nonfinite:
        LAYOUT.view(flat, 2).fill_(math.nan)
    touched = (True, True, nonfinite)
    reduced = conclude(FastGradients(LAYOUT), flat, touched=touched, nonfinite=nonfinite)
    changes = {"1.mean": torch.full((2, 2), 0.1, dtype=torch.float64)}
    return StepResult(step, attempt, reduced, Totals(changes, {0: math.nan, 7: 0.1}, 2**40 + 1))


def pair() -> tuple[LocalTransport, LocalTransport]:
    hub = LocalHub()
    return LocalTransport(GIVER, hub), LocalTransport(TAKER, hub)


def sent_bits(messages: list[tuple[Tag, Tensor]]) -> list[tuple[Tag, bytes]]:
    return [(tag, tensor.numpy().tobytes()) for tag, tensor in messages]


@pytest.mark.parametrize("channel", [Channel.RESULT, Channel.UPDATE])
@pytest.mark.parametrize(
    "verdict",
    [
        None,
        Verdict(1 / 3, None, False),
        Verdict(12.5, 0.1, False),
        Verdict(math.nan, None, True),
        Verdict(math.inf, None, True),
    ],
    ids=["none", "good", "clipped", "not a number", "infinite"],
)
@pytest.mark.parametrize("nonfinite", [False, True])
def test_a_result_and_its_verdict_arrive_with_all_their_bits(channel, verdict, nonfinite):
    sender, taker = pair()
    made = result(attempt=1, nonfinite=nonfinite)
    messages = result_messages(channel, made, FORM, verdict)
    for tag, tensor in messages:
        sender.send(TAKER, tag, tensor)
    attempt = 1 if channel is Channel.RESULT else 0  # a joiner does not know how often it was tried
    wanted = Tag(channel, 4, attempt)
    found, heard = receive_result(Arrivals(taker, GIVER), wanted, FORM, LIMIT_S)
    assert repr(heard) == repr(verdict)
    assert (found.step, found.attempt) == (4, 1)
    assert (found.reduced.touched, found.reduced.nonfinite) == (made.reduced.touched, nonfinite)
    assert repr(found.totals) == repr(made.totals)
    # Written down once more it is the same: nothing was lost on the way.
    assert sent_bits(result_messages(channel, found, FORM, heard)) == sent_bits(messages)
    assert taker.statistics.unread_bytes == 0


@pytest.mark.parametrize("before_break", range(4))
def test_a_result_whose_wait_was_broken_off_is_taken_up_where_it_was_left(before_break):
    sender, taker = pair()
    made, arrivals = result(), Arrivals(taker, GIVER)
    messages = result_messages(Channel.UPDATE, made, FORM, Verdict(1.0, None, False))
    for tag, tensor in messages[:before_break]:
        sender.send(TAKER, tag, tensor)
    wanted = Tag(Channel.UPDATE, 4)
    if before_break < len(messages):
        with pytest.raises(WaitTimeout):
            receive_result(arrivals, wanted, FORM, NO_TIME_S)
        taker.interrupt(1)
        with pytest.raises(EpochPast):
            receive_result(arrivals, wanted, FORM, LIMIT_S)
    for transport in (taker, sender):
        transport.advance(1)
    for tag, tensor in messages[before_break:]:
        sender.send(TAKER, tag, tensor)
    found, _ = receive_result(arrivals, wanted, FORM, LIMIT_S)
    assert torch.equal(found.reduced.flat, made.reduced.flat)


def test_what_was_used_up_is_not_taken_for_the_next_of_that_name():
    sender, taker = pair()
    arrivals = Arrivals(taker, GIVER)
    for step in (4, 5, 4):  # a source that begins anew sends an old step again
        for tag, tensor in result_messages(Channel.UPDATE, result(step), FORM):
            sender.send(TAKER, tag, tensor)
    flats = [
        receive_result(arrivals, Tag(Channel.UPDATE, step), FORM, LIMIT_S)[0].reduced.flat
        for step in (4, 5, 4)
    ]
    assert torch.equal(flats[0], flats[2])
    assert not torch.equal(flats[0], flats[1])
    with pytest.raises(WaitTimeout):
        receive_result(arrivals, Tag(Channel.UPDATE, 4), FORM, NO_TIME_S)


def test_whoever_waits_hears_that_the_source_begins_anew_but_only_when_nothing_else_is_here():
    sender, taker = pair()
    first, wanted = Tag(Channel.STATE, 0), Tag(Channel.UPDATE, 4)
    arrivals = Arrivals(taker, GIVER, first)
    sender.send(TAKER, first, torch.tensor([1.0]))
    assert arrivals.take(first, LIMIT_S).item() == 1.0
    with pytest.raises(WaitTimeout):
        arrivals.take(wanted, NO_TIME_S)
    sender.send(TAKER, first, torch.tensor([2.0]))
    sender.send(TAKER, wanted, torch.tensor([3.0]))
    assert arrivals.take(wanted, LIMIT_S).item() == 3.0
    with pytest.raises(BegunAnew):
        arrivals.take(wanted._replace(part=1), LIMIT_S)
    arrivals.use_up()
    assert arrivals.take(first, LIMIT_S).item() == 2.0


def test_a_result_of_another_stage_is_refused_by_name():
    sender, taker = pair()
    other = StageForm(FlatLayout.of([torch.zeros(50)]), {})
    for tag, tensor in result_messages(Channel.RESULT, result(), FORM):
        sender.send(TAKER, tag, tensor)
    with pytest.raises(ProtocolError, match=r"worker 0\.0 sent a gradient of \d+ elements"):
        receive_result(Arrivals(taker, GIVER), Tag(Channel.RESULT, 4), other, LIMIT_S)


@pytest.mark.parametrize("slot", [0, 2], ids=["used", "not used"])
def test_a_tied_parameter_travels_alone_and_says_whether_it_was_used(slot):
    sender, taker = pair()
    made = result(attempt=1)
    send_tied(sender, TAKER, made, 3, slot)
    tag = Tag(Channel.RESULT, 4, 1)
    values, touched = receive_tied(taker, GIVER, tag, 3, LIMIT_S)
    expected = LAYOUT.padded(made.reduced.flat, slot)
    assert values.numpy().tobytes() == expected.numpy().tobytes()
    assert touched is made.reduced.touched[slot]


def test_tied_parameters_and_whole_results_are_not_mistaken_for_each_other():
    sender, taker = pair()
    made, tag = result(), Tag(Channel.RESULT, 4)
    send_tied(sender, TAKER, made, 1, 0)
    send_tied(sender, TAKER, made, 2, 1)
    for other, tensor in result_messages(Channel.RESULT, made, FORM):
        sender.send(TAKER, other, tensor)
    second, _ = receive_tied(taker, GIVER, tag, 2, LIMIT_S)
    whole, _ = receive_result(Arrivals(taker, GIVER), tag, FORM, LIMIT_S)
    first, _ = receive_tied(taker, GIVER, tag, 1, LIMIT_S)
    assert torch.equal(whole.reduced.flat, made.reduced.flat)
    assert torch.equal(first, LAYOUT.padded(made.reduced.flat, 0))
    assert torch.equal(second, LAYOUT.padded(made.reduced.flat, 1))
