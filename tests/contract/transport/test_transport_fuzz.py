"""Nonsense on the port for tensors, from strangers and from workers: only its sender suffers.

HOLDFAST_SEED repeats a sample; it is printed.
"""

import gc
import os
import random
import threading
from collections.abc import Iterator

import pytest
import torch

from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    SECRET,
    Background,
    Caller,
    Frame,
    TcpCluster,
    activation,
    frame,
    state,
    wait_until,
    worker,
)
from helpers.seed import SEED
from helpers.stamps import stamps_of_both
from holdfast.auth import handshake
from holdfast.transport.base import Bundle, Limits
from holdfast.transport.frame import Note, encode_note
from holdfast.transport.tcp.greeting import SessionHello, encode_hello
from holdfast.transport.tcp.incoming import Incoming

CORPUS = [
    frame(activation(1), torch.ones(5)),
    frame(activation(2), torch.ones(5), sequence=2),
    frame(activation(3), torch.ones(0, 7), sequence=2),
    frame(state(1), torch.ones(3, dtype=torch.bfloat16), sequence=2, epoch=9),
    frame(activation(1), torch.ones(5), sequence=2**64 - 1),
    frame(activation(1), torch.ones(5), checksum=5),
    frame(activation(1), torch.ones(2**18)),
    frame(activation(4, part=1), torch.ones(5), bundle=Bundle(2, True)),
    Frame(encode_note(Note.SYNC)),
    Frame(encode_note(Note.BYE)),
    Frame(encode_hello(SessionHello(1, 0, False))),
    handshake.Caller(SECRET, worker(ALICE), "worker").hello,
    bytes(500),
]


@pytest.fixture
def cluster() -> Iterator[TcpCluster]:
    torch.set_num_threads(1)
    started = TcpCluster()
    yield started
    started.close()


def spoiled(dice: random.Random, caller: Caller) -> bytes:
    """Some messages: whole, cut off, changed, repeated, in any order.

    Changed before they got a stamp, or after.
    """
    parts: list[bytes | Frame] = []
    for _ in range(dice.randint(1, 4)):
        part = dice.choice(CORPUS)
        if isinstance(part, Frame) and dice.random() < 0.5:
            part = Frame(changed(part.header, dice), part.payload)
        parts += [part] * dice.choice((1, 1, 2))
    dice.shuffle(parts)
    stamps = caller.stamps or stamps_of_both()[0]  # a stranger has none that anybody knows
    whole = [
        stamps.stamped(part.header) + part.payload if isinstance(part, Frame) else part
        for part in parts
    ]
    return b"".join(changed(data, dice) if dice.random() < 0.3 else data for data in whole)


def changed(original: bytes, dice: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(dice.choice((0, 1, 3))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.2:
        del data[dice.randrange(len(data)) :]
    return bytes(data)


def attack(address: tuple[str, int], dice: random.Random) -> None:
    """As a stranger, as one who does not say hello, or as Carol."""
    with Caller(address) as caller:
        kind = dice.randrange(4)
        if kind == 0:
            caller.say(spoiled(dice, caller))
            return
        caller.introduce(CAROL)
        if kind > 1:
            caller.hello(dice.randrange(3), session=dice.randrange(3), resumes=dice.random() < 0.3)
        caller.say(spoiled(dice, caller))


def talk(me, other, stop: threading.Event) -> int:
    """Back and forth, with every value checked."""
    step = 0
    while not stop.is_set():
        me.send(other, activation(step), torch.full((1000,), step))
        assert torch.equal(me.receive(other, activation(step), LIMIT_S), torch.full((1000,), step))
        step += 1
    return step


def echo(me, other, talking: Background) -> None:
    step = 0
    while talking.is_alive() or me.has(other, activation(step)):
        if me.has(other, activation(step)):
            me.send(other, activation(step), me.receive(other, activation(step), LIMIT_S))
            step += 1
        else:
            stop_waiting = threading.Event()
            stop_waiting.wait(0.0005)


@pytest.mark.parametrize("num_attacks", [300, pytest.param(5000, marks=pytest.mark.wide)])
def test_s5_malformed_frames_hurt_only_their_sender(cluster, num_attacks):
    print(f"HOLDFAST_SEED={SEED}")  # noqa: T201
    dice = random.Random(SEED)
    limits = Limits(payload_bytes=1 << 20, inbox_bytes=1 << 20)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    alice.send(BOB, activation(0), torch.zeros(1))
    bob.receive(ALICE, activation(0), LIMIT_S)
    bob.send(ALICE, activation(0), torch.zeros(1))
    alice.receive(BOB, activation(0), LIMIT_S)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    stop = threading.Event()
    talking = Background(talk, alice, BOB, stop)
    echoing = Background(echo, bob, ALICE, talking)
    try:
        for _ in range(num_attacks):
            attack(cluster.addresses[BOB], dice)
            if dice.random() < 0.02:
                bob.disconnect([ALICE])  # what Carol has left is dropped
    finally:
        stop.set()
    assert talking.result() > 10
    echoing.result()
    assert alice.statistics.reconnections == bob.statistics.reconnections == 0
    assert bob.statistics.refused_connections > num_attacks / 4
    bob.disconnect([ALICE])
    wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    assert bob.statistics.unread_bytes == 0
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is Incoming]
    assert len(kept) <= 2, "connections that ended are kept"
