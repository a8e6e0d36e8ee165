"""Times under way, and links made slow on purpose: the same promises over TCP and in memory."""

import itertools
import math
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

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
    TcpCluster,
    activation,
    running,
    state,
    wait_until,
)
from holdfast.errors import ConfigError, EpochPast, PeerLost, TransportClosed, WaitTimeout
from holdfast.transport.base import Channel, Limits, Tag, Transport
from holdfast.transport.link_shaping import LinkShaping
from holdfast.transport.local.delayed_link import DelayedLink, InFlight
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.outbox import OutboxRules

FOR_EVER_S = 100 * LIMIT_S  # longer than any test waits
DELAY_S = 0.05
TIMED = [
    Channel.ACTIVATION,
    Channel.GRADIENT,
    Channel.PARTIAL,
    Channel.REDUCED,
    Channel.RESULT,
    Channel.PROBE,
]
UNTIMED = [channel for channel in Channel if channel not in TIMED]


@pytest.fixture(params=[LocalCluster, TcpCluster], ids=["local", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(request.param) as started:
        yield started


@pytest.fixture
def pair(cluster: Cluster) -> tuple[Transport, Transport]:
    """Already connected."""
    alice, bob = cluster.start(ALICE, BOB)
    meet(alice, bob)
    return alice, bob


def meet(alice: Transport, bob: Transport) -> None:
    alice.send(BOB, activation(0), torch.ones(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.take_transfers()


def probe(step: int = 1) -> Tag:
    return Tag(Channel.PROBE, step)


def kilobytes(number: int) -> torch.Tensor:
    return torch.zeros(number * 1000, dtype=torch.uint8)


def wait_for_transfers(transport: Transport, number: int) -> list:
    taken: list = []

    def have_come() -> bool:
        taken.extend(transport.take_transfers())
        return len(taken) >= number

    wait_until(have_come)
    return taken


# --- times ---


@pytest.mark.parametrize("channel", TIMED)
def test_what_came_in_is_told_once(pair, channel):
    alice, bob = pair
    begin_s = time.monotonic()
    for step in (1, 2):
        alice.send(BOB, Tag(channel, step), kilobytes(step))
    first, second = wait_for_transfers(bob, 2)
    most_s = time.monotonic() - begin_s
    assert first[:3] == (ALICE, channel, 1000)
    assert second[:3] == (ALICE, channel, 2000)
    assert 0 < first.took_s <= most_s
    assert 0 < second.took_s <= most_s
    assert bob.take_transfers() == []
    assert alice.take_transfers() == []


@pytest.mark.parametrize("channel", UNTIMED)
def test_other_channels_are_not_timed(pair, channel):
    alice, bob = pair
    alice.send(BOB, Tag(channel, 1), torch.ones(1))
    bob.receive(ALICE, Tag(channel, 1), LIMIT_S)
    assert bob.take_transfers() == []


def test_waiting_to_be_read_is_no_part_of_it(pair):
    alice, bob = pair
    begin_s = time.monotonic()
    alice.send(BOB, activation(1), torch.ones(1))
    bob.wait_any([(ALICE, activation(1))], LIMIT_S)
    most_s = time.monotonic() - begin_s
    time.sleep(0.01)
    bob.receive(ALICE, activation(1), LIMIT_S)
    [transfer] = bob.take_transfers()
    assert transfer.took_s <= most_s


def test_what_is_refused_was_under_way_too(pair):
    alice, bob = pair
    bob.advance(1)
    alice.send(BOB, activation(1), kilobytes(1))
    assert wait_for_transfers(bob, 1)[0].num_bytes == 1000
    assert bob.statistics.refused_past_epoch == 1


def test_if_nobody_asks_only_the_newest_are_kept(pair):
    alice, bob = pair
    num_kept, num_more = 8192, 10
    ones = [torch.ones(number, dtype=torch.uint8) for number in range(num_more + 1)]
    for number in range(num_kept + num_more):
        alice.send(BOB, probe(), ones[min(number, num_more)])
    alice.send(BOB, state(1), torch.ones(1))
    bob.receive(ALICE, state(1), LIMIT_S)
    taken = bob.take_transfers()
    assert len(taken) == num_kept
    assert {transfer.num_bytes for transfer in taken} == {num_more}


# --- probes ---


@pytest.mark.parametrize("when", ["at peace", "past epoch", "later epoch", "forgotten", "halted"])
def test_a_probe_is_timed_and_dropped(pair, when):
    alice, bob = pair
    before = bob.statistics
    if when == "past epoch":
        bob.advance(1)
    elif when == "later epoch":
        alice.advance(1)
    elif when == "forgotten":
        bob.forget(1, 0)
    elif when == "halted":
        bob.interrupt(1)
    alice.send(BOB, probe(), kilobytes(1))
    assert wait_for_transfers(bob, 1)[0][:3] == (ALICE, Channel.PROBE, 1000)
    assert not bob.has(ALICE, probe())
    bob.advance(1)
    assert not bob.has(ALICE, probe())
    assert bob.statistics == before, "neither unread, nor refused"


def test_probes_never_fill_an_inbox(cluster):
    limits = Limits(inbox_bytes=1, outbox_bytes=1, send_limit_s=LIMIT_S)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    for _ in range(20):
        alice.send(BOB, probe(), kilobytes(1000))
    assert len(wait_for_transfers(bob, 20)) == 20


# --- delay ---


def test_a_delay_shows_in_the_time_under_way_and_only_to_that_peer(cluster):
    alice, bob, carol = cluster.start(ALICE, BOB, CAROL)
    alice.shape_link(BOB, DELAY_S)
    alice.send(BOB, activation(1), torch.tensor(7))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 7
    assert bob.take_transfers()[0].took_s >= DELAY_S
    alice.shape_link(BOB, FOR_EVER_S)
    alice.send(BOB, activation(2), torch.ones(1))
    alice.send(CAROL, activation(2), torch.tensor(8))
    assert carol.receive(ALICE, activation(2), LIMIT_S) == 8
    carol.send(BOB, activation(2), torch.tensor(9))
    assert bob.receive(CAROL, activation(2), LIMIT_S) == 9
    bob.send(ALICE, activation(2), torch.tensor(10))
    assert alice.receive(BOB, activation(2), LIMIT_S) == 10
    assert not bob.has(ALICE, activation(2))


def test_messages_are_delayed_side_by_side(pair):
    alice, bob = pair
    num_messages, delay_s = 500, 0.1
    alice.shape_link(BOB, delay_s)
    for step in range(num_messages):
        alice.send(BOB, activation(step), torch.tensor(step))
    taken = wait_for_transfers(bob, num_messages)
    assert all(transfer.took_s >= delay_s for transfer in taken)
    one_after_the_other_s = num_messages * delay_s
    assert max(transfer.took_s for transfer in taken) < one_after_the_other_s / 2


def test_messages_keep_their_order_when_the_delay_is_taken_off(pair):
    alice, bob = pair
    alice.shape_link(BOB, DELAY_S)
    alice.send(BOB, activation(1), kilobytes(1))
    alice.shape_link(BOB)
    alice.send(BOB, activation(2), kilobytes(2))
    alice.send(BOB, activation(2), kilobytes(3))
    sizes = [transfer.num_bytes for transfer in wait_for_transfers(bob, 3)]
    assert sizes == [1000, 2000, 3000]


@pytest.mark.parametrize("was_used", [True, False])
def test_a_delay_taken_off_is_gone(pair, was_used):
    alice, bob = pair
    if was_used:
        alice.shape_link(BOB, DELAY_S)
        alice.send(BOB, activation(1), torch.ones(1))
        bob.receive(ALICE, activation(1), LIMIT_S)
    alice.shape_link(BOB, FOR_EVER_S, bytes_s=1)
    alice.shape_link(BOB)
    alice.send(BOB, activation(2), torch.tensor(7))
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 7


def test_order_is_kept_while_the_delay_comes_and_goes(pair):
    alice, bob = pair
    delays_s = itertools.cycle([0.0, 0.003, 0.0, 0.001, 0.002])
    is_over = threading.Event()

    def change() -> None:
        while not is_over.wait(0.0005):
            alice.shape_link(BOB, next(delays_s))

    changing = Background(change)
    for value in range(2000):
        alice.send(BOB, activation(1), torch.tensor(value))
    arrived = [int(bob.receive(ALICE, activation(1), LIMIT_S)) for _ in range(2000)]
    is_over.set()
    changing.result()
    assert arrived == list(range(2000))


def test_a_link_stays_slow_when_its_peer_comes_back(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    alice.shape_link(BOB, DELAY_S)
    meet(alice, bob)
    bob.close()
    alice.advance(1)
    alice.disconnect([])
    [again] = cluster.start(BOB)
    again.advance(1)
    alice.send(BOB, activation(1), torch.tensor(7))
    assert again.receive(ALICE, activation(1), LIMIT_S) == 7
    assert again.take_transfers()[0].took_s >= DELAY_S


@pytest.mark.parametrize("wrong", [(-0.1, 1.0), (math.inf, 1.0), (math.nan, 1.0), (0.0, 0.0)])
def test_nonsense_is_refused(pair, wrong):
    with pytest.raises(ConfigError, match=r"link to worker 0\.1: delay_s="):
        pair[0].shape_link(BOB, *wrong)


def test_in_memory_no_thread_is_started_unless_a_message_is_held():
    def lines() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "-line-" in thread.name]

    with running(LocalCluster) as cluster:
        alice, bob, _ = cluster.start(ALICE, BOB, CAROL)
        alice.shape_link(CAROL, DELAY_S)
        meet(alice, bob)
        assert lines() == []
        alice.send(CAROL, activation(1), torch.ones(1))
        assert lines() == ["holdfast-0.0-line-1.0"]


# --- rate ---


def test_a_large_message_takes_its_bytes_by_the_rate(pair):
    alice, bob = pair
    alice.shape_link(BOB, bytes_s=10e6)
    alice.send(BOB, activation(1), kilobytes(1000))
    bob.receive(ALICE, activation(1), LIMIT_S)
    assert bob.take_transfers()[0].took_s >= 0.1


def test_small_messages_share_the_rate(pair):
    alice, bob = pair
    alice.shape_link(BOB, bytes_s=0.25e6)
    begin_s = time.monotonic()
    for step in range(10):
        alice.send(BOB, activation(step), kilobytes(10))
    sending_s = time.monotonic() - begin_s
    taken = wait_for_transfers(bob, 10)
    assert taken[0].took_s >= 0.04
    assert sending_s + taken[-1].took_s >= 0.4


def test_rate_and_delay_add_up(pair):
    alice, bob = pair
    alice.shape_link(BOB, DELAY_S, bytes_s=1e6)
    alice.send(BOB, activation(1), kilobytes(50))
    bob.receive(ALICE, activation(1), LIMIT_S)
    assert bob.take_transfers()[0].took_s >= DELAY_S + 0.05


# --- what is held waits to leave ---


def test_a_flush_that_times_out_says_for_whom_messages_are_held(pair):
    pair[0].shape_link(BOB, FOR_EVER_S)
    pair[0].send(BOB, activation(1), torch.empty(0))  # no bytes of its own
    with pytest.raises(WaitTimeout, match=r"still wait to leave for worker 0\.1"):
        pair[0].flush(0.01)


def test_flush_waits_for_what_is_held(pair):
    alice, bob = pair
    alice.shape_link(BOB, 4 * DELAY_S)
    for step in range(3):
        alice.send(BOB, activation(step), torch.empty(0))
    alice.flush(LIMIT_S)
    alice.close()
    for step in range(3):
        bob.receive(ALICE, activation(step), LIMIT_S)


def test_close_ends_at_once_and_what_is_held_is_lost(pair):
    alice, bob = pair
    alice.shape_link(BOB, FOR_EVER_S)
    alice.send(BOB, activation(1), torch.ones(1))
    flushing = Background(alice.flush, FOR_EVER_S).wait_until_blocked()
    Background(alice.close).result()
    with pytest.raises(TransportClosed):
        flushing.result()
    with pytest.raises(PeerLost):
        bob.receive(ALICE, activation(1), LIMIT_S)


def test_a_new_epoch_drops_what_is_held_of_earlier_ones(pair):
    alice, bob = pair
    alice.shape_link(BOB, FOR_EVER_S)
    alice.send(BOB, activation(1), torch.ones(1))
    for transport in pair:
        transport.advance(1)
    alice.flush(LIMIT_S)  # nothing is left
    alice.shape_link(BOB)
    alice.send(BOB, activation(2), torch.tensor(7))
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 7
    assert bob.statistics.refused_past_epoch == 0, "it did not even leave"


def test_a_narrow_link_is_free_again_in_a_new_epoch(pair):
    alice, bob = pair
    alice.shape_link(BOB, bytes_s=1000)
    alice.send(BOB, activation(1), kilobytes(1000))
    for transport in pair:
        transport.advance(1)
    alice.send(BOB, activation(2), torch.tensor(7))
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 7


def test_what_is_held_and_timeless_outlives_its_epoch(pair):
    alice, bob = pair
    alice.shape_link(BOB, 2 * DELAY_S)
    alice.send(BOB, state(1), torch.tensor(7))
    for transport in pair:
        transport.advance(1)
    assert bob.receive(ALICE, state(1), LIMIT_S) == 7


def test_what_is_held_comes_too_late_for_a_receiver_in_a_later_epoch(pair):
    alice, bob = pair
    alice.shape_link(BOB, DELAY_S)
    alice.send(BOB, activation(1), torch.ones(1))
    bob.advance(1)
    wait_until(lambda: bob.statistics.refused_past_epoch == 1)
    assert not bob.has(ALICE, activation(1))


def test_disconnect_lets_go_of_what_is_held(pair):
    alice, _ = pair
    alice.shape_link(BOB, FOR_EVER_S)
    alice.send(BOB, activation(1), torch.ones(1))
    flushing = Background(alice.flush, FOR_EVER_S).wait_until_blocked()
    alice.disconnect([])
    flushing.result()


@pytest.mark.parametrize("end", ["epoch", "interrupt", "close", "limit"])
def test_a_send_that_waits_for_held_bytes_to_leave_ends(cluster, end):
    limit_s = 0.05 if end == "limit" else 2 * LIMIT_S
    limits = Limits(outbox_bytes=1000, send_limit_s=limit_s)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    meet(alice, bob)
    alice.shape_link(BOB, FOR_EVER_S)
    alice.send(BOB, activation(1), kilobytes(2))
    sending = Background(alice.send, BOB, activation(2), kilobytes(2))
    if end == "limit":
        with pytest.raises(WaitTimeout, match=r"waited 0\.05 s for room"):
            sending.result()
        return
    sending.wait_until_blocked()
    error = TransportClosed if end == "close" else EpochPast
    {"epoch": alice.advance, "interrupt": alice.interrupt}.get(end, lambda _: alice.close())(1)
    with pytest.raises(error):
        sending.result()


def test_the_end_of_a_receiver_reaches_the_sender_of_held_messages(pair):
    alice, bob = pair
    alice.shape_link(BOB, 0.001)
    bob.close()

    def is_refused() -> bool:
        try:
            alice.send(BOB, activation(1), torch.ones(1))
            alice.flush(LIMIT_S)
        except PeerLost:
            return True
        return False

    wait_until(is_refused)


def test_in_memory_a_held_message_is_delivered_by_a_sender_of_todays_epoch(monkeypatch):
    start, lines = DelayedLink.start, []
    monkeypatch.setattr(DelayedLink, "start", lambda line: lines.append(line))
    with running(LocalCluster) as cluster:
        alice, bob = cluster.start(ALICE, BOB)
        meet(alice, bob)
        alice.shape_link(BOB, DELAY_S)
        alice.send(BOB, state(1), torch.tensor(7))
        for transport in (alice, bob):
            transport.advance(1)
        bob.disconnect([])  # whoever comes back must be in this epoch
        [line] = lines
        start(line)  # held until now, whatever its delay
        assert bob.receive(ALICE, state(1), LIMIT_S) == 7


def test_a_line_given_up_in_the_middle_of_a_delivery_has_nothing_left_to_leave():
    inbox = Mailbox(BOB, epoch=0, inbox_bytes=1)
    line = DelayedLink(
        ALICE,
        inbox,
        deliver=lambda *_: line.abandon("it was disconnected"),
        rules=OutboxRules(lambda _: True, nullcontext, Limits()),
        shaping=LinkShaping(),
    )
    line.start()
    line.send(InFlight(0, activation(1), torch.ones(1), 0))
    line.join(LIMIT_S)
    line.flush(time.monotonic())


# --- the kernel's own slowness ---

IN_A_SLOW_NETWORK = """
import sys
import torch
from holdfast.cluster import WorkerId
from holdfast.transport.base import Channel, Tag
from holdfast.transport.tcp.transport import TcpTransport

alice, bob = (TcpTransport(WorkerId(0, stage), bytes(32)) for stage in range(2))
alice.connect({bob.me: bob.listen()})
for step in range(20):  # connected, and past the kernel's first burst
    tag = Tag(Channel.ACTIVATION, step)
    alice.send(bob.me, tag, torch.zeros(int(sys.argv[1]), dtype=torch.uint8))
    bob.receive(alice.me, tag, 30.0)
print(min(transfer.took_s for transfer in bob.take_transfers()[1:]))
for transport in (alice, bob):
    transport.close()
"""


@pytest.mark.parametrize(
    ("slowness", "num_bytes", "at_least_s"),
    [
        ("netem delay 20ms", 1000, 0.020),
        # A token bucket: all but its burst goes at the rate.
        ("tbf rate 80mbit burst 20kb latency 1s", 200_000, 0.5 * 200_000 / 10e6),
    ],
    ids=["delay", "rate"],
)
def test_a_slow_network_shows_in_the_time_under_way(slowness, num_bytes, at_least_s):
    words = ["unshare", "-rn", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"]).returncode:
        pytest.skip("no right to a network namespace of its own")
    setup = "ip link set lo up mtu 1500 && tc qdisc add dev lo root "
    if subprocess.run([*words, setup + slowness], capture_output=True).returncode:
        pytest.skip(f"this kernel has no {slowness.split()[0]}, or tc or ip is missing")
    command = setup + f'{slowness} && exec "$0" -c "$1" {num_bytes}'
    done = subprocess.run(
        [*words, command, sys.executable, IN_A_SLOW_NETWORK],
        capture_output=True,
        text=True,
        timeout=3 * LIMIT_S,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) >= at_least_s
