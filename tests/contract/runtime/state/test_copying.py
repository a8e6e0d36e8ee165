"""A stage's state on its way to a joiner: in pieces, through changes of epoch, updates after it."""

import math
import sys
import threading
import weakref
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from helpers.harness.transport_harness import Background, wait_until
from helpers.scarce import refuse_threads
from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, ProtocolError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.reduce.step_sums import Totals
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.state import copying
from holdfast.runtime.state.copying import HEADER, State, StateSender, receive_state
from holdfast.runtime.state.results import Arrivals, BegunAnew, StageForm, receive_result
from holdfast.runtime.update.commit import Committed, StepResult
from holdfast.transport.base import Channel, Limits, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

GIVER, JOINER, OTHER = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)
LIMIT_S = 20.0
LAYOUT = FlatLayout.of([torch.zeros(5)])
FORM = StageForm(LAYOUT, {})


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(copying, "PIECE_BYTES", 64)


def tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {
        "0.weight": torch.arange(100.0).reshape(4, 25) * value,  # seven pieces
        "0.turned": torch.arange(12.0).reshape(3, 4).t(),  # not contiguous
        "0.weight/step": torch.tensor(value),
        "0.count": torch.tensor(2**40 + 1),
        "0.half": torch.full((33,), value, dtype=torch.bfloat16),
        "0.special": torch.tensor([math.nan, -math.inf, -0.0, 1e-45]),
        "0.mask": torch.tensor([True, False]),
        "0.nothing": torch.zeros(0, 3),
    }


def committed(step: int) -> Committed:
    flat = torch.zeros(LAYOUT.numel)
    LAYOUT.view(flat, 0).fill_(step)
    reduced = conclude(FastGradients(LAYOUT), flat, touched=[True], nonfinite=False)
    verdict = Verdict(float(step), None if step % 2 else 0.5, False)
    return Committed(StepResult(step, step % 2, reduced, Totals()), verdict, taken_back=False)


def as_bits(given: Mapping[str, Tensor]) -> dict[str, object]:
    return {
        key: (
            tensor.dtype,
            tensor.shape,
            tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else [],
        )
        for key, tensor in given.items()
    }


class Copy:
    """One sender, and joiners that ask."""

    def __init__(self, *joiners: WorkerId, limits: Limits | None = None) -> None:
        self.hub = LocalHub()
        self.transport = LocalTransport(GIVER, self.hub)
        self.sender = StateSender(self.transport, FORM)
        self.joiners = {
            joiner: LocalTransport(joiner, self.hub, limits=limits)
            for joiner in joiners or (JOINER,)
        }
        for joiner in self.joiners:
            self.sender.ask(joiner)

    def state(self, joiner: WorkerId = JOINER) -> State:
        return receive_state(Arrivals(self.joiners[joiner], GIVER), LIMIT_S)

    def update(self, step: int, joiner: WorkerId = JOINER) -> tuple[StepResult, Verdict | None]:
        arrivals = Arrivals(self.joiners[joiner], GIVER)
        return receive_result(arrivals, Tag(Channel.UPDATE, step), FORM, LIMIT_S)

    def assert_update(self, step: int, joiner: WorkerId = JOINER) -> None:
        result, verdict = self.update(step, joiner)
        expected = committed(step)
        assert torch.equal(result.reduced.flat, expected.result.reduced.flat)
        assert (result.step, result.attempt, verdict) == (step, step % 2, expected.verdict)

    def advance(self, epoch: int) -> None:
        for transport in (self.transport, *self.joiners.values()):
            transport.advance(epoch)


def test_a_state_arrives_in_pieces_with_all_its_bits():
    copy = Copy()
    assert copy.sender.is_asked
    copy.sender.send_state(7, tensors())
    assert not copy.sender.is_asked
    found = copy.state()
    assert found.version == 7
    assert list(found.tensors) == list(tensors())
    assert as_bits(found.tensors) == as_bits(tensors())
    assert found.num_bytes == sum(tensor.nbytes for tensor in tensors().values())
    assert copy.joiners[JOINER].statistics.received_messages > 10
    assert copy.joiners[JOINER].statistics.unread_bytes == 0


def test_what_arrives_is_the_joiners_own():
    copy, sent = Copy(), tensors()
    copy.sender.send_state(7, sent)
    for tensor in copy.state().tensors.values():
        tensor.zero_()
    assert as_bits(sent) == as_bits(tensors())


def test_updates_follow_the_state_in_their_order():
    copy = Copy()
    copy.sender.send_state(7, tensors())
    for step in (7, 8, 9):
        copy.sender.send_update(committed(step))
    assert copy.state().version == 7
    for step in (7, 8, 9):
        copy.assert_update(step)


def test_an_update_from_before_the_state_was_taken_is_not_sent():
    copy = Copy()
    copy.sender.send_update(committed(6))
    copy.sender.send_state(7, tensors())
    copy.sender.send_update(committed(7))
    copy.state()
    copy.assert_update(7)
    assert not copy.joiners[JOINER].has(GIVER, Tag(Channel.UPDATE, 6))


def test_a_change_of_epoch_in_the_middle_disturbs_neither_side():
    copy = Copy(limits=Limits(inbox_bytes=100))  # the feed has to wait for room
    arrivals = Arrivals(copy.joiners[JOINER], GIVER)
    copy.sender.send_state(7, tensors())
    wait_until(lambda: copy.joiners[JOINER].statistics.received_messages > 0)
    for epoch in (1, 2):
        for transport in (copy.transport, copy.joiners[JOINER]):
            transport.interrupt(epoch)
        with pytest.raises(EpochPast):
            receive_state(arrivals, LIMIT_S)
        copy.advance(epoch)
    copy.sender.send_update(committed(7))
    found = receive_state(arrivals, LIMIT_S)
    assert as_bits(found.tensors) == as_bits(tensors())
    copy.assert_update(7)


def test_a_joiner_that_is_halted_half_way_goes_on_where_it_was():
    copy = Copy()
    joiner = copy.joiners[JOINER]
    waiting = Background(receive_state, arrivals := Arrivals(joiner, GIVER), LIMIT_S)
    waiting.wait_until_blocked()
    joiner.interrupt(1)
    with pytest.raises(EpochPast):
        waiting.result()
    copy.sender.send_state(7, tensors())
    joiner.advance(1)  # the sender is still in the epoch before
    assert as_bits(receive_state(arrivals, LIMIT_S).tensors) == as_bits(tensors())


def test_two_joiners_at_once_get_the_same():
    copy = Copy(JOINER, OTHER)
    assert copy.sender.joiners == {JOINER, OTHER}
    copy.sender.send_state(7, tensors())
    copy.sender.send_update(committed(7))
    for joiner in (OTHER, JOINER):
        assert as_bits(copy.state(joiner).tensors) == as_bits(tensors())
        copy.assert_update(7, joiner)
    assert copy.sender.joiners == {JOINER, OTHER}


def test_a_joiner_that_comes_later_gets_the_later_state_and_the_first_one_goes_on():
    copy = Copy(JOINER, OTHER)
    copy.sender.forget({OTHER})
    copy.sender.send_state(7, tensors())
    copy.sender.ask(OTHER)
    copy.sender.send_update(committed(7))
    copy.sender.send_state(8, tensors(3.0))
    copy.sender.send_update(committed(8))
    assert copy.state(JOINER).version == 7
    for step in (7, 8):
        copy.assert_update(step, JOINER)
    late = copy.state(OTHER)
    assert (late.version, late.tensors["0.weight/step"].item()) == (8, 3.0)
    copy.assert_update(8, OTHER)


def test_a_joiner_that_dies_holds_up_nobody():
    copy = Copy(JOINER, OTHER, limits=Limits(inbox_bytes=100))
    copy.sender.send_state(7, tensors())
    copy.joiners[JOINER].close()
    for step in (7, 8):
        copy.sender.send_update(committed(step))
    assert as_bits(copy.state(OTHER).tensors) == as_bits(tensors())
    for step in (7, 8):
        copy.assert_update(step, OTHER)


def test_a_joiner_that_is_gone_costs_no_memory_for_ever():
    copy = Copy()
    copy.sender.send_state(7, tensors())
    copy.state()
    copy.joiners[JOINER].close()
    copy.sender.send_update(committed(7))  # only now the feed finds out
    wait_until(lambda: not copy.sender.joiners)
    update = committed(8)
    copy.sender.send_update(update)
    assert sys.getrefcount(update) == 2, "somebody keeps an update that nobody will get"


def test_r8_updates_that_wait_for_a_slow_joiner_are_bounded_in_bytes(monkeypatch):
    """It gets a newer state instead; one that never keeps up gets nothing in the end."""
    monkeypatch.setattr(copying, "MOST_BEHIND_BYTES", 3 * LAYOUT.numel * 4)
    copy = Copy(limits=Limits(inbox_bytes=100))  # it reads nothing
    num_copies, kept = 0, []
    for step in range(7, 60):
        update = committed(step)
        kept.append(weakref.ref(update.result.reduced.flat))
        copy.sender.send_update(update)
        del update
        if copy.sender.is_asked:
            num_copies += 1
            copy.sender.send_state(step + 1, tensors())
            wait_until(lambda: f"feed-{JOINER}" in [one.name for one in threading.enumerate()])
    assert num_copies == 1 + copying.MOST_COPIES - 1
    assert not copy.sender.joiners
    wait_until(lambda: sum(one() is not None for one in kept) <= copying.MOST_COPIES)
    copy.joiners[JOINER].close()


def test_r8_a_joiner_that_fell_behind_takes_the_newer_state(monkeypatch):
    monkeypatch.setattr(copying, "MOST_BEHIND_BYTES", 3 * LAYOUT.numel * 4)
    copy = Copy(limits=Limits(inbox_bytes=100))
    copy.sender.send_state(7, tensors())
    step = 7
    while not copy.sender.is_asked:
        copy.sender.send_update(committed(step))
        step += 1
    copy.sender.send_state(step, tensors(2.0))
    arrivals = Arrivals(copy.joiners[JOINER], GIVER, HEADER)

    def follow_the_first() -> None:
        receive_state(arrivals, LIMIT_S)
        receive_result(arrivals, Tag(Channel.UPDATE, 99), FORM, LIMIT_S)

    with pytest.raises(BegunAnew):
        follow_the_first()
    arrivals.use_up()
    assert receive_state(arrivals, LIMIT_S).version == step


def test_a_joiner_hears_that_its_source_is_lost():
    copy = Copy()
    waiting = Background(copy.state).wait_until_blocked()
    copy.transport.close()
    with pytest.raises(PeerLost) as lost:
        waiting.result()
    assert lost.value.worker == str(GIVER)


def test_whoever_asks_again_begins_anew():
    copy = Copy()
    copy.sender.send_state(7, tensors())
    copy.state()
    copy.sender.ask(JOINER)
    assert copy.sender.is_asked
    copy.sender.send_update(committed(7))  # it has not the state that this belongs to
    copy.sender.send_state(8, tensors(2.0))
    copy.sender.send_update(committed(8))
    again = copy.state()
    assert (again.version, again.tensors["0.weight/step"].item()) == (8, 2.0)
    copy.assert_update(8)
    assert not copy.joiners[JOINER].has(GIVER, Tag(Channel.UPDATE, 7))


def test_a_joiner_with_half_of_a_state_takes_the_one_that_begins_anew():
    copy = Copy(limits=Limits(inbox_bytes=100))  # the feed has to wait for room
    arrivals = Arrivals(copy.joiners[JOINER], GIVER, HEADER)
    copy.sender.send_state(7, tensors())
    arrivals.take(HEADER, LIMIT_S)
    arrivals.take(Tag(Channel.STATE, 7), LIMIT_S)
    wait_until(lambda: copy.joiners[JOINER].statistics.unread_bytes > 100)
    copy.sender.ask(JOINER)
    copy.sender.send_state(8, tensors(2.0))
    # The old feed may get through before it hears that it is over; halves are never mixed.
    values = {7: tensors(), 8: tensors(2.0)}
    newest = 0
    while newest < 8:
        try:
            state = receive_state(arrivals, LIMIT_S)
        except BegunAnew:
            arrivals.use_up()
            continue
        newest = state.version
        assert as_bits(state.tensors) == as_bits(values[newest])


def test_whoever_has_become_a_member_is_sent_no_more_updates():
    copy = Copy()
    copy.sender.send_state(7, tensors())
    copy.sender.send_update(committed(7))
    copy.state()
    copy.assert_update(7)
    copy.sender.forget({JOINER})
    assert copy.sender.joiners == set()
    sent = copy.transport.statistics.sent_messages
    copy.sender.send_update(committed(8))
    assert copy.transport.statistics.sent_messages == sent


@pytest.mark.parametrize("text", [b"", b"[]", b'{"version": 1}', b'{"tensors": [["a", "no", []]]}'])
def test_what_is_no_header_is_refused(text):
    copy = Copy()
    header = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0)
    copy.transport.send(JOINER, Tag(Channel.STATE, 0), header)
    with pytest.raises(ProtocolError, match="not the header of a state"):
        copy.state()


def test_a_copy_for_which_there_is_no_thread_begins_after_the_next_step(monkeypatch):
    copy = Copy(JOINER, OTHER)
    refused = refuse_threads(monkeypatch, f"feed-{JOINER}", 1)
    copy.sender.send_state(7, tensors())
    assert refused == [f"feed-{JOINER}"]
    assert copy.state(OTHER).version == 7
    assert copy.sender.is_asked
    copy.sender.send_update(committed(7))
    copy.sender.send_state(8, tensors())
    assert copy.state().version == 8
    copy.assert_update(7, OTHER)


def test_a_copy_for_which_there_never_is_a_thread_is_given_up(monkeypatch):
    copy = Copy()
    refused = refuse_threads(monkeypatch, "feed", 100)
    for version in range(5):
        copy.sender.send_state(version, tensors())
    assert len(refused) == 3
    assert copy.sender.joiners == set()


def test_an_older_copy_that_is_still_being_sent_never_comes_after_a_newer_one(monkeypatch):
    """The first message of the older one is under way for long."""
    send, older_may_go = LocalTransport.send, threading.Event()
    sent = {7: threading.Event(), 8: threading.Event()}

    def send_late(self, to, tag, tensor, *more):
        version = 7 if tag == HEADER and b'"version": 7' in tensor.numpy().tobytes() else 8
        if version == 7:
            assert older_may_go.wait(LIMIT_S)
        send(self, to, tag, tensor, *more)
        sent[version].set()

    monkeypatch.setattr(LocalTransport, "send", send_late)
    copy = Copy()
    copy.sender.send_state(7, tensors())
    copy.sender.ask(JOINER)
    copy.sender.send_state(8, tensors(2.0))
    assert not sent[8].wait(0.2), "it does not wait for the older one"
    older_may_go.set()
    assert sent[7].wait(LIMIT_S)
    arrivals = Arrivals(copy.joiners[JOINER], GIVER, HEADER)
    with pytest.raises(BegunAnew):
        receive_state(arrivals, LIMIT_S)
    arrivals.use_up()
    assert receive_state(arrivals, LIMIT_S).version == 8
