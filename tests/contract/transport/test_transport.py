"""What every transport promises, asked of each of them."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    Background,
    Cluster,
    LocalCluster,
    SlowLocalCluster,
    SlowTcpCluster,
    TcpCluster,
    TlsCluster,
    activation,
    running,
    state,
    wait_until,
)
from holdfast.cluster import WorkerId
from holdfast.errors import (
    ConfigError,
    EpochPast,
    PeerLost,
    ProtocolError,
    TransportClosed,
    WaitTimeout,
)
from holdfast.transport.base import Bundle, Channel, Limits, Tag, Transport

MB = 1 << 20
TIGHT = Limits(inbox_bytes=MB, outbox_bytes=MB, send_limit_s=LIMIT_S)
PATIENT = Limits(inbox_bytes=MB, outbox_bytes=MB, send_limit_s=2 * LIMIT_S)
HASTY = Limits(inbox_bytes=MB, outbox_bytes=MB, send_limit_s=0.05)
# Full buffers of the kernel, one message more than each limit, and room to spare.
MOST_UNREAD_MESSAGES = 60


@pytest.fixture(
    params=[
        *(LocalCluster, TcpCluster, SlowLocalCluster, SlowTcpCluster),
        pytest.param(TlsCluster, marks=pytest.mark.wide),
    ],
    ids=["local", "tcp", "slow-local", "slow-tcp", "tls"],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A slow link breaks no promise."""
    with running(request.param) as started:
        yield started


@pytest.fixture
def pair(cluster: Cluster) -> tuple[Transport, Transport]:
    alice, bob = cluster.start(ALICE, BOB)
    return alice, bob


def megabyte(value: int) -> torch.Tensor:
    return torch.full((MB,), value, dtype=torch.uint8)


def fill(sender: Transport, to: WorkerId, make_tag: Callable[[int], Tag] = activation) -> int:
    """Send a megabyte a step to someone who does not read, until there is no room."""
    for step in range(MOST_UNREAD_MESSAGES):
        try:
            sender.send(to, make_tag(step), megabyte(step))
        except WaitTimeout:
            return step
    pytest.fail(f"{MOST_UNREAD_MESSAGES} MB unread, and the sender was not held back")


def send_for_ever(sender: Transport, to: WorkerId) -> None:
    for step in itertools.count():
        sender.send(to, activation(step), megabyte(0))


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    raw_left, raw_right = (t.contiguous().view(-1).view(torch.uint8) for t in (left, right))
    return (
        left.dtype == right.dtype and left.shape == right.shape and torch.equal(raw_left, raw_right)
    )


# --- what arrives ---


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4), (1,) * 8], ids=str)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
def test_bits_arrive(pair, dtype, shape):
    alice, bob = pair
    num_bytes = torch.empty(shape, dtype=dtype).nbytes
    # Every bit pattern must survive, not-a-numbers too; a bool is only ever 0 or 1.
    bits = torch.arange(num_bytes, dtype=torch.uint8) * 37 + 129
    bits = bits % 2 if dtype == torch.bool else bits
    tensor = bits.view(dtype).reshape(shape)
    alice.send(BOB, activation(1), tensor)
    assert same_bits(bob.receive(ALICE, activation(1), LIMIT_S), tensor)


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_bundle_arrives_whole_and_with_the_gradients_that_it_takes(pair, size):
    alice, bob = pair
    sent = [torch.full((part,), float(part), requires_grad=part % 3 == 0) for part in range(size)]
    sent[-1] = sent[-1].detach().to(torch.int64)
    alice.send_all(BOB, activation(1), sent)
    alice.send_all(BOB, activation(2), sent[:1])
    [again] = bob.receive_all(ALICE, activation(2), LIMIT_S)
    found = bob.receive_all(ALICE, activation(1), LIMIT_S)
    assert [one.requires_grad for one in found] == [one.requires_grad for one in sent]
    for one, other in zip(found, sent, strict=True):
        assert same_bits(one.detach(), other.detach())
    assert all(one.grad_fn is None for one in found)
    assert same_bits(again.detach(), sent[0].detach())
    assert bob.statistics.unread_bytes == 0


def test_only_activations_bring_along_whether_they_require_a_gradient(pair):
    alice, bob = pair
    tag = Tag(Channel.GRADIENT, 1)
    alice.send_all(BOB, tag, [torch.ones(3, requires_grad=True)])
    [found] = bob.receive_all(ALICE, tag, LIMIT_S)
    assert not found.requires_grad


def test_a_bundle_waits_for_its_last_tensor(pair):
    alice, bob = pair
    alice.send(BOB, activation(1), torch.zeros(1), Bundle(2))
    waiting = Background(bob.receive_all, ALICE, activation(1), LIMIT_S).wait_until_blocked()
    alice.send(BOB, activation(1, part=1), torch.ones(1), Bundle(2))
    assert [one.item() for one in waiting.result()] == [0.0, 1.0]


def test_a_bundle_ends_like_any_wait(pair):
    bob = pair[1]
    with pytest.raises(WaitTimeout):
        bob.receive_all(ALICE, activation(1), 0.0)
    waiting = Background(bob.receive_all, ALICE, activation(1), LIMIT_S).wait_until_blocked()
    bob.advance(1)
    with pytest.raises(EpochPast):
        waiting.result()


def test_a_noncontiguous_tensor_arrives_contiguous(pair):
    alice, bob = pair
    tensor = torch.arange(24.0).reshape(4, 6).t()[1:, ::2]
    alice.send(BOB, activation(1), tensor)
    arrived = bob.receive(ALICE, activation(1), LIMIT_S)
    assert arrived.is_contiguous()
    assert same_bits(arrived, tensor)


def test_autograd_history_stays_at_home(pair):
    alice, bob = pair
    tensor = torch.ones(3, requires_grad=True) * 2
    alice.send(BOB, activation(1), tensor)
    arrived = bob.receive(ALICE, activation(1), LIMIT_S)
    arrived.requires_grad_()
    assert arrived.is_leaf
    assert not tensor.is_leaf


@pytest.mark.parametrize(
    "tensor", [torch.zeros((1,) * 9), torch.zeros(2, dtype=torch.complex64)], ids=["9d", "complex"]
)
def test_what_cannot_travel_is_refused_at_once_and_nothing_else_suffers(pair, tensor):
    alice, bob = pair
    with pytest.raises(ProtocolError, match="cannot send"):
        alice.send(BOB, activation(1), tensor)
    alice.send(BOB, activation(1), torch.ones(1))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 1


def test_a_tensor_over_the_limit_is_refused_where_it_was_made(cluster):
    alice, _ = cluster.start(ALICE, BOB, limits=Limits(payload_bytes=100))
    with pytest.raises(ProtocolError, match="101 bytes, the limit is 100"):
        alice.send(BOB, activation(1), torch.zeros(101, dtype=torch.uint8))


def test_messages_of_one_tag_keep_their_order(pair):
    alice, bob = pair
    for value in range(100):
        alice.send(BOB, activation(1), torch.tensor(value))
    assert [int(bob.receive(ALICE, activation(1), LIMIT_S)) for _ in range(100)] == list(range(100))


def test_tags_can_be_received_in_any_order(pair):
    alice, bob = pair
    tags = [
        activation(step, microbatch=microbatch, part=part, attempt=attempt)
        for step in (1, 2**40)
        for microbatch in (0, 9)
        for part in (0, 1)
        for attempt in (0, 3)
    ]
    for value, tag in enumerate(tags):
        alice.send(BOB, tag, torch.tensor(value))
    for value, tag in reversed(list(enumerate(tags))):
        assert bob.receive(ALICE, tag, LIMIT_S) == value


def test_sources_are_told_apart(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    alice.send(BOB, activation(1), torch.tensor(1))
    carol.send(BOB, activation(1), torch.tensor(2))
    assert bob.receive(CAROL, activation(1), LIMIT_S) == 2
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 1


def test_many_threads_can_send_to_one_peer(pair):
    alice, bob = pair

    def send_all(part: int) -> None:
        for step in range(50):
            alice.send(BOB, activation(step, part=part), torch.full((1000,), step))

    for sender in [Background(send_all, part) for part in range(4)]:
        sender.result()
    for step in range(50):
        for part in range(4):
            arrived = bob.receive(ALICE, activation(step, part=part), LIMIT_S)
            assert torch.equal(arrived, torch.full((1000,), step))


def test_statistics_count_messages_and_bytes(pair):
    alice, bob = pair
    alice.send(BOB, activation(1), torch.zeros(10))
    alice.send(BOB, activation(2), torch.zeros(5))
    bob.receive(ALICE, activation(2), LIMIT_S)
    assert (alice.statistics.sent_messages, alice.statistics.sent_bytes) == (2, 60)
    assert (bob.statistics.received_messages, bob.statistics.received_bytes) == (2, 60)
    assert bob.statistics.unread_bytes == 40


# --- waiting ---


def test_wait_any_picks_the_first_that_is_here(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    wanted = [(ALICE, activation(1)), (CAROL, activation(2)), (ALICE, activation(3))]
    carol.send(BOB, activation(2), torch.ones(1))
    assert bob.wait_any(wanted, LIMIT_S) == 1
    alice.send(BOB, activation(1), torch.ones(1))
    bob.wait_any(wanted[:1], LIMIT_S)
    assert bob.wait_any(wanted, LIMIT_S) == 0
    bob.receive(ALICE, activation(1), 0)
    assert bob.wait_any(wanted, LIMIT_S) == 1, "what was received is not here any more"


@pytest.mark.parametrize("who", [0, 1])
def test_wait_any_wakes_for_either(cluster, who):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    wanted = [(ALICE, activation(1)), (CAROL, activation(2))]
    waiting = Background(bob.wait_any, wanted, LIMIT_S).wait_until_blocked()
    (alice, carol)[who].send(BOB, wanted[who][1], torch.ones(1))
    assert waiting.result() == who


def test_wait_any_of_nothing_is_a_mistake(pair):
    with pytest.raises(ValueError, match="never end"):
        pair[1].wait_any([], LIMIT_S)


def test_a_receive_that_times_out_says_who_waited_for_what(pair):
    expected = (
        "worker 0.1 waited for ACTIVATION of step 7 attempt 1 micro-batch 2 part 3 "
        "from worker 0.0 for 0.01 s"
    )
    with pytest.raises(WaitTimeout, match=expected):
        pair[1].receive(ALICE, activation(7, attempt=1, microbatch=2, part=3), 0.01)


def test_a_wait_any_that_times_out_names_all_it_waited_for(pair):
    with pytest.raises(WaitTimeout, match=r"step 1 .* from worker 0\.0 or .*step 2 .* worker 1\.0"):
        pair[1].wait_any([(ALICE, activation(1)), (CAROL, activation(2))], 0.01)


# --- closing ---


@pytest.mark.parametrize(
    "wait",
    [
        lambda bob: bob.receive(ALICE, activation(1), LIMIT_S),
        lambda bob: bob.wait_any([(ALICE, activation(1))], LIMIT_S),
    ],
    ids=["receive", "wait_any"],
)
def test_close_ends_a_wait(pair, wait: Callable[[Transport], object]):
    _, bob = pair
    waiting = Background(wait, bob).wait_until_blocked()
    bob.close()
    with pytest.raises(TransportClosed):
        waiting.result()


def test_close_ends_a_send_that_waits_for_room(cluster):
    alice, _ = cluster.start(ALICE, BOB, limits=TIGHT)
    sending = Background(send_for_ever, alice, BOB).wait_until_blocked()
    alice.close()
    with pytest.raises(TransportClosed):
        sending.result()


def test_after_close_nothing_works_and_closing_again_is_fine(pair):
    alice, bob = pair
    alice.send(BOB, activation(1), torch.ones(1))
    bob.receive(ALICE, activation(1), LIMIT_S)
    alice.send(BOB, activation(2), torch.ones(1))
    bob.wait_any([(ALICE, activation(2))], LIMIT_S)
    for transport in pair:
        transport.close()
        transport.close()
    with pytest.raises(TransportClosed):
        bob.receive(ALICE, activation(2), LIMIT_S)
    with pytest.raises(TransportClosed):
        bob.wait_any([(ALICE, activation(2))], LIMIT_S)
    with pytest.raises(TransportClosed):
        alice.send(BOB, activation(3), torch.ones(1))
    with pytest.raises(TransportClosed):
        alice.flush(LIMIT_S)


def test_what_was_flushed_arrives_although_the_sender_closes(pair):
    alice, bob = pair
    for step in range(20):
        alice.send(BOB, activation(step), megabyte(step))
    alice.flush(LIMIT_S)
    alice.close()
    for step in range(20):
        assert torch.equal(bob.receive(ALICE, activation(step), LIMIT_S), megabyte(step))


# --- back-pressure ---


def test_a_receiver_that_does_not_read_holds_the_sender_back(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=HASTY)
    num_sent = fill(alice, BOB)
    assert bob.statistics.unread_bytes <= HASTY.inbox_bytes + MB
    for step in range(num_sent):
        assert torch.equal(bob.receive(ALICE, activation(step), LIMIT_S), megabyte(step))
    alice.flush(LIMIT_S)
    alice.send(BOB, activation(num_sent), megabyte(num_sent))
    assert torch.equal(bob.receive(ALICE, activation(num_sent), LIMIT_S), megabyte(num_sent))


def test_a_held_back_sender_says_for_whom_it_waited(cluster):
    alice, _ = cluster.start(ALICE, BOB, limits=HASTY)
    with pytest.raises(WaitTimeout, match=r"worker 0\.0 waited 0\.05 s for room.* worker 0\.1"):
        send_for_ever(alice, BOB)


def test_a_held_back_sender_goes_on_when_the_receiver_reads(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=TIGHT)
    num_messages = MOST_UNREAD_MESSAGES

    def send_all() -> None:
        for step in range(num_messages):
            alice.send(BOB, activation(step), megabyte(step))

    sending = Background(send_all).wait_until_blocked()
    for step in range(num_messages):
        assert torch.equal(bob.receive(ALICE, activation(step), LIMIT_S), megabyte(step))
    sending.result()


def test_a_full_inbox_does_not_keep_back_a_later_tag_that_is_waited_for(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=TIGHT)
    last = MOST_UNREAD_MESSAGES - 1

    def send_all() -> None:
        for step in range(last + 1):
            alice.send(BOB, activation(step), megabyte(step))

    sending = Background(send_all).wait_until_blocked()
    assert torch.equal(bob.receive(ALICE, activation(last), LIMIT_S), megabyte(last))
    sending.result()
    assert torch.equal(bob.receive(ALICE, activation(0), LIMIT_S), megabyte(0))


def test_a_full_inbox_of_one_source_does_not_hold_back_another(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL, limits=HASTY)
    fill(alice, BOB)
    carol.send(BOB, activation(1), megabyte(1))
    assert torch.equal(bob.receive(CAROL, activation(1), LIMIT_S), megabyte(1))


def test_large_tensors_both_ways_at_once_do_not_deadlock(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=TIGHT)

    def exchange(me: Transport, other: WorkerId, value: int) -> torch.Tensor:
        me.send(other, activation(1), torch.full((64 * MB,), value, dtype=torch.uint8))
        me.send(other, activation(2), torch.ones(1))
        arrived = me.receive(other, activation(1), LIMIT_S)
        me.receive(other, activation(2), LIMIT_S)
        return arrived

    there = Background(exchange, alice, BOB, 1)
    back = Background(exchange, bob, ALICE, 2)
    assert torch.all(there.result() == 2)
    assert torch.all(back.result() == 1)


def test_a_circle_of_full_workers_does_not_deadlock(cluster):
    names = (ALICE, BOB, CAROL)
    ring = cluster.start(*names, limits=TIGHT)

    def send_all_then_read(place: int) -> None:
        after, before = names[(place + 1) % 3], names[place - 1]
        for step in range(MOST_UNREAD_MESSAGES):
            ring[place].send(after, activation(step), megabyte(step))
        for step in range(MOST_UNREAD_MESSAGES):
            arrived = ring[place].receive(before, activation(step), LIMIT_S)
            assert torch.equal(arrived, megabyte(step))

    for worker in [Background(send_all_then_read, place) for place in range(3)]:
        worker.result()


# --- epochs ---


def test_messages_of_a_past_epoch_are_refused(pair):
    alice, bob = pair
    alice.send(BOB, activation(1), torch.tensor(1))
    bob.wait_any([(ALICE, activation(1))], LIMIT_S)
    bob.advance(5)  # refuses what is here
    alice.send(BOB, activation(1), torch.tensor(2))  # and what still comes
    alice.flush(LIMIT_S)
    alice.advance(5)
    alice.send(BOB, activation(1), torch.tensor(3))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 3
    assert bob.statistics.refused_past_epoch == 2
    assert bob.statistics.unread_bytes == 0


def test_messages_of_a_newer_epoch_wait_until_their_time(pair):
    alice, bob = pair
    alice.advance(2)
    alice.send(BOB, activation(1), torch.tensor(1))
    alice.send(BOB, activation(1), torch.tensor(2))
    wait_until(lambda: bob.statistics.received_messages == 2)
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)
    bob.advance(1)
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)
    bob.advance(2)
    assert [int(bob.receive(ALICE, activation(1), 0)) for _ in range(2)] == [1, 2]


def test_an_epoch_that_was_skipped_is_past(pair):
    alice, bob = pair
    alice.advance(1)
    alice.send(BOB, activation(1), torch.tensor(1))
    wait_until(lambda: bob.statistics.received_messages == 1)
    bob.advance(2)
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)
    assert bob.statistics.refused_past_epoch == 1


def test_a_wait_of_an_earlier_epoch_ends(pair):
    _, bob = pair
    receiving = Background(bob.receive, ALICE, activation(1), LIMIT_S).wait_until_blocked()
    waiting = Background(bob.wait_any, [(ALICE, activation(2))], LIMIT_S).wait_until_blocked()
    bob.advance(1)
    for wait in (receiving, waiting):
        with pytest.raises(EpochPast, match="in epoch 0, which ended"):
            wait.result()


def test_a_send_that_waits_for_room_ends_with_its_epoch(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=TIGHT)
    sending = Background(send_for_ever, alice, BOB)
    epochs = itertools.count(1)

    def ends_with_an_epoch() -> bool:  # one wait may just have ended by itself: try again
        if sending.is_blocked():
            alice.advance(next(epochs))
        return not sending.is_alive()

    wait_until(ends_with_an_epoch)
    with pytest.raises(EpochPast, match="waited for room in epoch"):
        sending.result()
    alice.advance(last := next(epochs))
    bob.advance(last)
    alice.send(BOB, activation(0), torch.ones(1))
    assert bob.receive(ALICE, activation(0), LIMIT_S) == 1


def test_there_is_no_way_back_to_an_earlier_epoch(pair):
    pair[0].advance(3)
    pair[0].advance(3)
    with pytest.raises(EpochPast, match="at epoch 3, cannot go to 2"):
        pair[0].advance(2)


def test_forgotten_attempts_are_dropped_here_and_on_arrival(pair):
    alice, bob = pair
    alice.send(BOB, activation(1, attempt=0), torch.tensor(10))
    alice.send(BOB, activation(2, attempt=0), torch.tensor(20))
    alice.send(BOB, activation(1, attempt=2), torch.tensor(12))
    bob.wait_any([(ALICE, activation(1, attempt=2))], LIMIT_S)
    bob.forget(step=1, attempt=1)
    alice.send(BOB, activation(1, attempt=1), torch.tensor(11))
    alice.send(BOB, activation(3), torch.tensor(30))
    bob.wait_any([(ALICE, activation(3))], LIMIT_S)
    for attempt in (0, 1):
        with pytest.raises(WaitTimeout):
            bob.receive(ALICE, activation(1, attempt=attempt), 0)
    assert bob.receive(ALICE, activation(1, attempt=2), 0) == 12
    assert bob.receive(ALICE, activation(2), 0) == 20
    assert bob.statistics.refused_forgotten == 2


def test_what_is_forgotten_in_one_epoch_may_come_in_the_next(pair):
    """All go back to a checkpoint and try the step anew, some of them sooner than others."""
    alice, bob = pair
    bob.forget(step=1, attempt=0)
    alice.advance(1)
    alice.send(BOB, activation(1), torch.tensor(1))
    wait_until(lambda: bob.statistics.received_messages == 1)
    bob.forget(step=1, attempt=0)
    bob.advance(1)
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 1


# --- interrupts ---


@pytest.mark.parametrize("tag", [activation(1), state(1)], ids=str)
def test_an_interrupt_ends_every_wait(pair, tag):
    _, bob = pair
    longer_s = 3 * LIMIT_S  # than the test waits: neither ends by itself
    receiving = Background(bob.receive, ALICE, tag, longer_s).wait_until_blocked()
    waiting = Background(bob.wait_any, [(ALICE, tag)], longer_s).wait_until_blocked()
    bob.interrupt(1)
    for wait in (receiving, waiting):
        with pytest.raises(EpochPast, match="in epoch 0, which ended: the newest is 1"):
            wait.result()


@pytest.mark.parametrize("tag", [activation(1), state(1)], ids=str)
def test_in_an_interrupted_epoch_not_even_what_is_here_can_be_received(pair, tag):
    alice, bob = pair
    alice.send(BOB, tag, torch.tensor(1))
    bob.wait_any([(ALICE, tag)], LIMIT_S)
    bob.interrupt(1)
    with pytest.raises(EpochPast):
        bob.receive(ALICE, tag, LIMIT_S)
    with pytest.raises(EpochPast):
        bob.wait_any([(ALICE, tag)], LIMIT_S)
    assert bob.has(ALICE, tag)


def test_an_interrupt_lasts_until_its_epoch_has_come(pair):
    alice, bob = pair
    alice.advance(3)
    alice.send(BOB, activation(1), torch.tensor(7))
    bob.interrupt(2)
    bob.interrupt(3)  # a second failure, before the worker could answer the first
    bob.interrupt(1)
    for epoch in (0, 1, 2):
        bob.advance(epoch)
        with pytest.raises(EpochPast):
            bob.receive(ALICE, activation(1), LIMIT_S)
    bob.advance(3)
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 7
    bob.interrupt(3)  # late news
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)


def test_an_interrupt_comes_before_the_loss_of_a_peer(pair):
    alice, bob = pair
    alice.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    alice.close()
    with pytest.raises(PeerLost):
        bob.receive(ALICE, activation(1), LIMIT_S)
    bob.interrupt(1)
    with pytest.raises(EpochPast):
        bob.receive(ALICE, activation(1), LIMIT_S)
    bob.advance(1)
    with pytest.raises(PeerLost):
        bob.receive(ALICE, activation(1), LIMIT_S)


@pytest.mark.parametrize("make_tag", [activation, state], ids=["activation", "state"])
def test_an_interrupt_ends_sends_that_wait_for_room_now_and_later(cluster, make_tag):
    alice, _ = cluster.start(ALICE, BOB, limits=PATIENT)

    def send_all() -> None:
        for step in range(MOST_UNREAD_MESSAGES):
            alice.send(BOB, make_tag(step), megabyte(0))

    sending = Background(send_all).wait_until_blocked()
    alice.interrupt(1)
    with pytest.raises(EpochPast, match="waited for room in epoch 0"):
        sending.result()
    with pytest.raises(EpochPast, match="waited for room in epoch 0"):
        send_all()


def test_a_send_that_need_not_wait_goes_out_in_an_interrupted_epoch(pair):
    alice, bob = pair
    alice.interrupt(1)
    alice.send(BOB, activation(1), torch.tensor(7))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 7


# --- what is true in every epoch ---


def test_only_states_and_updates_are_timeless():
    timeless = {channel for channel in Channel if channel.is_timeless}
    assert timeless == {Channel.STATE, Channel.UPDATE}


@pytest.mark.parametrize("channel", [Channel.STATE, Channel.UPDATE])
@pytest.mark.parametrize("epochs", [(5, 0), (0, 5)], ids=["from-later", "from-earlier"])
def test_a_timeless_message_is_readable_whatever_the_epochs(pair, epochs, channel):
    alice, bob = pair
    for transport, epoch in zip(pair, epochs, strict=True):
        transport.advance(epoch)
    alice.send(BOB, Tag(channel, 1), torch.tensor(7))
    assert bob.receive(ALICE, Tag(channel, 1), LIMIT_S) == 7
    assert bob.statistics.refused_past_epoch == 0


def test_an_unread_timeless_message_outlives_epochs_and_forgetting(pair):
    alice, bob = pair
    for epoch in range(3):
        alice.send(BOB, activation(epoch), torch.tensor(-1))
        alice.send(BOB, state(7), torch.tensor(epoch))
        wait_until(lambda sent=epoch + 1: bob.statistics.received_messages == 2 * sent)
        bob.forget(step=7, attempt=9)
        for transport in pair:
            transport.advance(epoch + 1)
    assert not any(bob.has(ALICE, activation(step)) for step in range(3))
    assert [int(bob.receive(ALICE, state(7), LIMIT_S)) for _ in range(3)] == [0, 1, 2]
    assert bob.statistics.unread_bytes == 0


def test_a_timeless_message_that_waits_to_leave_outlives_its_epoch(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=HASTY)
    num_sent = fill(alice, BOB, state)
    alice.advance(1)
    bob.advance(2)
    for step in range(num_sent):
        assert torch.equal(bob.receive(ALICE, state(step), LIMIT_S), megabyte(step))


# --- peers that end ---


def test_a_peer_that_closed_is_lost_once_its_messages_are_read(pair):
    alice, bob = pair
    for step in range(3):
        alice.send(BOB, activation(step), torch.tensor(step))
    alice.flush(LIMIT_S)
    alice.close()
    for step in (2, 0, 1):
        assert bob.receive(ALICE, activation(step), LIMIT_S) == step
    lost = pytest.raises(PeerLost, match=r"worker 0\.1 cannot get .*step 3.*: worker 0\.0 closed")
    with lost as raised:
        bob.receive(ALICE, activation(3), LIMIT_S)
    assert raised.value.worker == "0.0"


def test_a_wait_for_a_peer_ends_when_the_peer_does(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    for transport in (alice, carol):
        transport.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.wait_any([(CAROL, activation(0))], LIMIT_S)
    receiving = Background(bob.receive, ALICE, activation(1), LIMIT_S).wait_until_blocked()
    wanted = [(CAROL, activation(1)), (ALICE, activation(1))]
    waiting = Background(bob.wait_any, wanted, LIMIT_S).wait_until_blocked()
    alice.close()
    for wait in (receiving, waiting):
        with pytest.raises(PeerLost):
            wait.result()
    assert bob.wait_any([*wanted, (CAROL, activation(0))], LIMIT_S) == 2, "what is here goes first"


def test_sending_to_a_peer_that_closed_soon_fails(pair):
    alice, bob = pair
    alice.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.close()

    def is_refused() -> bool:
        try:
            alice.send(BOB, activation(1), torch.ones(1))
        except PeerLost as error:
            return "0.1" in str(error)
        return False

    wait_until(is_refused)


def test_a_held_back_sender_is_told_when_the_receiver_ends(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=TIGHT)
    sending = Background(send_for_ever, alice, BOB).wait_until_blocked()
    bob.close()
    with pytest.raises(PeerLost):
        sending.result()


def test_a_peer_that_is_not_known_is_lost(pair):
    with pytest.raises(PeerLost, match=r"1\.0"):
        pair[0].send(CAROL, activation(1), torch.ones(1))


def test_a_worker_that_comes_back_is_heard_and_reached_again(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    alice.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.send(ALICE, activation(0), torch.ones(1))
    alice.close()
    with pytest.raises(PeerLost):
        bob.receive(ALICE, activation(1), LIMIT_S)
    [again] = cluster.start(ALICE)
    waiting = Background(bob.receive, ALICE, activation(1), LIMIT_S).wait_until_blocked()
    again.send(BOB, activation(1), torch.tensor(7))
    assert waiting.result() == 7
    bob.send(ALICE, activation(2), torch.tensor(8))
    assert again.receive(BOB, activation(2), LIMIT_S) == 8


def test_nothing_is_left_of_a_peer_that_was_disconnected(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    for step in range(2):
        alice.send(BOB, activation(step), torch.ones(1))
    alice.send(BOB, state(1), torch.ones(1))
    carol.send(BOB, activation(1), torch.tensor(7))
    for source, tag in ((ALICE, state(1)), (CAROL, activation(1))):
        bob.wait_any([(source, tag)], LIMIT_S)
    alice.flush(LIMIT_S)
    alice.close()
    with pytest.raises(PeerLost):
        bob.receive(ALICE, activation(9), LIMIT_S)
    bob.disconnect([CAROL])
    for tag in (activation(0), activation(1), state(1), activation(9)):
        with pytest.raises(WaitTimeout):
            bob.receive(ALICE, tag, 0)
    with pytest.raises(PeerLost):
        bob.send(ALICE, activation(1), torch.ones(1))
    assert bob.receive(CAROL, activation(1), 0) == 7
    assert bob.statistics.unread_bytes == 0


def test_a_peer_that_is_kept_notices_nothing(cluster):
    alice, bob, _ = cluster.start(ALICE, BOB, CAROL)
    alice.send(BOB, activation(0), torch.tensor(0))
    bob.send(ALICE, activation(0), torch.tensor(0))
    alice.flush(LIMIT_S)
    bob.disconnect([ALICE])
    alice.disconnect([BOB])
    alice.send(BOB, activation(1), torch.tensor(1))
    bob.send(ALICE, activation(1), torch.tensor(1))
    for receiver, source in ((bob, ALICE), (alice, BOB)):
        assert [int(receiver.receive(source, activation(s), LIMIT_S)) for s in (0, 1)] == [0, 1]


def test_a_worker_that_was_disconnected_cannot_go_on_as_before(pair):
    alice, bob = pair
    alice.send(BOB, activation(0), torch.ones(1))
    bob.wait_any([(ALICE, activation(0))], LIMIT_S)
    bob.disconnect([])
    steps = itertools.count(1)

    def is_refused() -> bool:
        try:
            alice.send(BOB, activation(next(steps)), torch.ones(1))
        except PeerLost:
            return True
        return False

    wait_until(is_refused)
    assert not any(bob.has(ALICE, activation(step)) for step in range(next(steps)))
    alice.close()  # her end is no news
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(0), 0)


def test_workers_that_hung_up_on_each_other_meet_again_in_a_later_epoch(cluster):
    pair = alice, bob = cluster.start(ALICE, BOB)
    for epoch in range(1, 4):
        for me, other in ((alice, BOB), (bob, ALICE)):
            me.send(other, activation(epoch), torch.tensor(epoch))
        assert bob.receive(ALICE, activation(epoch), LIMIT_S) == epoch
        assert alice.receive(BOB, activation(epoch), LIMIT_S) == epoch
        for transport in pair:
            transport.advance(epoch)
            transport.disconnect([])
        cluster.connect_all()


def test_a_name_is_taken_over_in_a_later_epoch_and_its_old_bearer_refused(cluster):
    old, bob = cluster.start(ALICE, BOB)
    old.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.advance(1)
    bob.disconnect([])
    [new] = cluster.start(ALICE)
    new.advance(1)
    new.send(BOB, activation(1), torch.tensor(7))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 7
    bob.send(ALICE, activation(1), torch.tensor(8))
    assert new.receive(BOB, activation(1), LIMIT_S) == 8

    def is_refused() -> bool:
        try:
            old.send(BOB, state(0), torch.ones(1))  # not refused for its epoch alone
        except PeerLost:
            return True
        return False

    wait_until(is_refused)
    old.disconnect([])
    old.close()
    assert not bob.has(ALICE, state(0))
    new.send(BOB, activation(2), torch.tensor(9))
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 9


# --- copies that nobody wants any more ---


def test_r8_what_is_left_of_a_copy_is_dropped_when_it_is_over(pair):
    alice, bob = pair
    alice.send(BOB, state(1), megabyte(1))
    alice.send(BOB, activation(1), torch.tensor(1))
    bob.wait_any([(ALICE, activation(1))], LIMIT_S)
    bob.expect_copies(False)
    assert not bob.has(ALICE, state(1))
    alice.send(BOB, state(2), megabyte(2))  # it was under way
    alice.send(BOB, activation(2), torch.tensor(2))
    for step in (1, 2):
        assert bob.receive(ALICE, activation(step), LIMIT_S) == step
    assert bob.statistics.unread_bytes == 0
    assert bob.statistics.refused_copies == 2
    bob.expect_copies(True)
    alice.send(BOB, state(3), torch.tensor(3))
    assert bob.receive(ALICE, state(3), LIMIT_S) == 3


def test_r8_a_copy_from_another_source_drops_what_the_first_had_sent(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    for source in (alice, carol):
        source.send(BOB, state(1), megabyte(1))
    for source in (ALICE, CAROL):
        bob.wait_any([(source, state(1))], LIMIT_S)
    bob.drop_copies(keep=CAROL)
    assert (bob.has(ALICE, state(1)), bob.has(CAROL, state(1))) == (False, True)
    assert bob.statistics.unread_bytes == MB


# --- connections that break ---


def cut_often(
    cluster, stop: threading.Event, cuts: list[int], num_heard: Callable[[], int]
) -> None:
    """Less often while nothing gets through: a slow machine would not connect in time, ever."""
    dice, pause_s, before = random.Random(1), cluster.pause_s, 0
    while not stop.wait(dice.uniform(0.0, pause_s)):
        cuts.append(cluster.cut())
        pause_s = cluster.pause_s if num_heard() > before else 2 * pause_s
        before = num_heard()


def test_r4_a_broken_connection_costs_nothing_and_nobody(cluster):
    """Each message arrives once and in the order of its tag, whenever connections break."""
    alice, bob = cluster.start(ALICE, BOB)
    sizes = (1, 1000, 300_000)
    stop, cuts = threading.Event(), []

    def num_heard() -> int:
        return alice.statistics.received_messages + bob.statistics.received_messages

    cutting = Background(cut_often, cluster, stop, cuts, num_heard)

    def talk(me: Transport, other: WorkerId) -> list[tuple[int, int]]:
        heard = []
        for step in range(150):
            me.send(other, activation(step % 7), torch.full((sizes[step % 3],), step))
            got = me.receive(other, activation(step % 7), LIMIT_S)
            heard.append((len(got), int(got[-1])))
        return heard

    try:
        talks = [Background(talk, alice, BOB), Background(talk, bob, ALICE)]
        heard = [talk.result() for talk in talks]
    finally:
        stop.set()
        cutting.result()
    assert heard == [[(sizes[step % 3], step) for step in range(150)]] * 2
    if isinstance(cluster, TcpCluster):
        made_anew = alice.statistics.reconnections + bob.statistics.reconnections
        assert sum(cuts) > 1  # on a busy machine TLS takes long to be set up again
        assert made_anew > 1, "no connection was made anew: this test proves nothing"
    for transport in (alice, bob):
        transport.flush(LIMIT_S)
        assert transport.statistics.unread_bytes == 0


def test_r4_a_break_while_nobody_sends_is_mended_too(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    for step in range(20):
        alice.send(BOB, activation(step), torch.tensor(step))
        cluster.cut()
    assert [int(bob.receive(ALICE, activation(step), LIMIT_S)) for step in range(20)] == [
        *range(20)
    ]


# --- settings ---


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"inbox_bytes": 0}, "inbox_bytes=0: must be above 0"),
        ({"send_limit_s": 200.0}, "silence_limit_s=120.0 must be at least send_limit_s=200.0"),
    ],
    ids=["zero", "silence"],
)
def test_nonsense_limits_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        Limits(**setting)
