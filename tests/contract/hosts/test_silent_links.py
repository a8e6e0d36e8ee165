"""A link between two machines on which packets vanish in one direction: its sender finds out."""

import sys
from collections.abc import Iterator

import pytest

from helpers.hosts import Host, hosts, why_not
from helpers.live import wait_until

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.cluster,
    pytest.mark.timeout(300),
]
_BOTH = """
import pathlib, sys, time
import torch
from holdfast.cluster import WorkerId
from holdfast.transport.base import Channel, Limits, Tag
from holdfast.transport.tcp.transport import TcpTransport

ALICE, BOB = WorkerId(0, 0), WorkerId(0, 1)
LIMITS = Limits(connect_limit_s=1.0, reconnect_limit_s=2.0)

def say(*words):
    print(*words, flush=True)

def opened(me):
    return TcpTransport(me, bytes(32), "0.0.0.0", listen_port=9000, limits=LIMITS)
"""
_SENDS = f"""{_BOTH}
alice = opened(ALICE)
alice.tell_unreached(lambda peer: say("unreached", peer))
alice.connect({{BOB: (sys.argv[1], 9000)}})
alice.send(BOB, Tag(Channel.ACTIVATION, 0), torch.tensor(0))
alice.flush(60)
say("sent")
while not pathlib.Path("/tmp/go").exists():
    time.sleep(0.01)
alice.send(BOB, Tag(Channel.ACTIVATION, 1), torch.tensor(1))
time.sleep(120)  # it is busy, and sends nothing more
"""
_RECEIVES = f"""{_BOTH}
bob = opened(BOB)
bob.listen()
say("up")
for step in range(2):
    say("got", int(bob.receive(ALICE, Tag(Channel.ACTIVATION, step), 120)))
"""


@pytest.fixture
def two() -> Iterator[tuple[Host, ...]]:
    with hosts(2) as machines:
        yield machines


@pytest.mark.parametrize("lost", ["data", "acknowledgements"])
def test_a_sender_tells_of_a_link_that_is_dead_in_either_direction(two, tmp_path, lost):
    sends, receives = two
    python = [sys.executable, "-c"]
    there = receives.start([*python, _RECEIVES], tmp_path, "receives")
    wait_until(lambda: "up" in there.stdout, "a receiver")
    here = sends.start([*python, _SENDS, receives.ipv4], tmp_path, "sends")
    wait_until(lambda: "sent" in here.stdout, "a message")
    if lost == "data":
        sends.block(receives)
    else:
        receives.block(sends)
    sends.file("/tmp/go").touch()
    wait_until(lambda: "unreached 0.1" in here.stdout, "the word of the sender")
    got = "got 0\ngot 1\n" if lost == "acknowledgements" else "got 0\n"
    assert there.stdout == f"up\n{got}", "whoever receives knows nothing of it"
