"""Frames for the launcher's port that nobody would send: changed, cut off, recorded, out of order.

Some before their sender has proven anything, some after. All follow from one seed.
"""

import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from helpers.agents import agent_hello
from holdfast.auth.handshake import AGENT, COORDINATOR, JOINER, WORKER_ROLE, Caller, Identity, call
from holdfast.errors import HandshakeFailed, HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.codec import encode
from holdfast.protocol.spec import Access

LIMIT_S = 60.0
_KEPT_OPEN = 100  # descriptors are few on this side too
_SHA = "5a" * 32
FRAMES = [
    encode(message)
    for message in (
        messages.JoinRequest(worker="", pid=9, fingerprint={}, job_sha256=_SHA),
        agent_hello(7),
        messages.WorkerExited(worker="0.0", pid=1, how="signal SIGKILL"),
        messages.Ready(worker="0.0"),
        messages.Halt(epoch=99),
        messages.Stop(reason="the run is over"),
        messages.Failed(worker="0.0", lost="", exit_code=1, reason="made up", details=""),
        messages.PeerGone(worker="0.0", epoch=1, lost="1.0"),
        messages.Heartbeat(
            worker="0.0",
            epoch=1,
            step=1,
            attempt=0,
            done=3,
            operation="F",
            number=7,
            microbatch=2,
            busy_s=0.1,
            longest={"F": 0.2},
        ),
    )
]


@dataclass
class Fuzzer:
    """``sent``: how many frames of which sort, to show that all were tried."""

    access: Access
    seed: int
    living: str = "0.0"
    sent: Counter[str] = field(default_factory=Counter)
    let_in: list[str] = field(default_factory=list)  # what must stay empty

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._open: list[socket.socket] = []
        self._recorded: list[bytes] = []

    def run(self, num_frames: int) -> None:
        ways: list[Callable[[], int]] = [
            self._noise,
            self._bent_handshake,
            self._replay,
            self._bent_messages,
            self._as_somebody,
        ]
        while sum(self.sent.values()) < num_frames:
            way = self._dice.choice(ways)
            self.sent[way.__name__.strip("_")] += way()

    def close(self) -> None:
        for sock in self._open:
            sock.close()

    def _connected(self) -> socket.socket:
        sock = socket.create_connection((self.access.host, self.access.port), timeout=LIMIT_S)
        self._open.append(sock)
        if len(self._open) > _KEPT_OPEN:
            self._open.pop(self._dice.randrange(len(self._open))).close()
        return sock

    def _say(self, sock: socket.socket, data: bytes) -> None:
        """In one piece or in many; who has hung up meanwhile has its reasons."""
        try:
            while data:
                size = self._dice.choice([1, 3, 58, len(data), len(data)])
                sock.sendall(data[:size])
                data = data[size:]
            if self._dice.random() < 0.3:
                sock.close()
        except OSError:
            return

    def _bent(self, data: bytes) -> bytes:
        dice = self._dice
        at = dice.randrange(len(data))
        ways = (
            lambda: data[:at] + bytes([data[at] ^ dice.randrange(1, 256)]) + data[at + 1 :],
            lambda: data[:at],
            lambda: data[at:],
            lambda: data[:at] + dice.randbytes(dice.randrange(1, 70)) + data[at:],
            lambda: data + data,
            lambda: data[:at] + data[at:][::-1],
            lambda: struct.pack("<I", dice.choice([0, 1, 1 << 20, 1 << 31])) + data[4:],
        )
        return dice.choice(ways)()

    def _noise(self) -> int:
        self._say(self._connected(), self._dice.randbytes(self._dice.randrange(1, 300)))
        return 1

    def _bent_handshake(self) -> int:
        role, name = self._dice.choice([(JOINER, ""), (AGENT, ""), (WORKER_ROLE, self.living)])
        caller = Caller(self._secret(), Identity(role, name, self.access.generation), COORDINATOR)
        sock = self._connected()
        if self._dice.random() < 0.5:
            self._say(sock, self._bent(caller.hello))
            return 1
        self._say(sock, caller.hello)
        try:
            proof = caller.feed(_read(sock, caller.wanted))
        except (HandshakeFailed, OSError):
            proof = b"HFpr\2" + self._dice.randbytes(32)
        at = self._dice.randrange(len(proof))
        flipped = bytes([proof[at] ^ self._dice.randrange(1, 256)])
        self._say(sock, proof[:at] + flipped + proof[at + 1 :])
        return 2

    def _secret(self) -> bytes:
        """The right one now and then: a proof that is changed on the way proves nothing."""
        return self.access.secret if self._dice.random() < 0.5 else self._dice.randbytes(32)

    def _replay(self) -> int:
        """All that somebody said who was let in."""
        if not self._recorded:
            caller = Caller(self.access.secret, Identity(JOINER), COORDINATOR)
            sock = self._connected()
            sock.sendall(caller.hello)
            try:
                proof = caller.feed(_read(sock, caller.wanted))
            except (HandshakeFailed, OSError):  # pushed out by the others
                return 1
            assert caller.stamps is not None
            self._recorded = [caller.hello, proof, caller.stamps.stamped(FRAMES[0])]
        sock, said = self._connected(), list(self._recorded)
        if self._dice.random() < 0.5:
            self._dice.shuffle(said)
        self._say(sock, b"".join(said))
        self._must_not_hear(sock, "a replay")
        return len(said)

    def _must_not_hear(self, sock: socket.socket, what: str) -> None:
        """At most an answer of the handshake comes back, which is of no use to a recording."""
        try:
            heard = _read(sock, 1000)
        except OSError:
            return
        if len(heard) > 200:
            self.let_in.append(what)

    def _bent_messages(self) -> int:
        """From one who has proven to want to join."""
        return self._after_proof(JOINER, "", self._dice.sample(FRAMES, 3), bend=True)

    def _as_somebody(self) -> int:
        """Whole frames of other roles, in any order, under names that are taken."""
        role, name = self._dice.choice([(WORKER_ROLE, self.living), (AGENT, ""), (JOINER, "")])
        wrong = FRAMES[1:] if role == JOINER else FRAMES
        return self._after_proof(role, name, self._dice.sample(wrong, 3), bend=False)

    def _after_proof(self, role: str, name: str, frames: list[bytes], *, bend: bool) -> int:
        me = Identity(role, name, self.access.generation)
        sock = self._connected()
        try:
            _, stamps = call(sock, self.access.secret, me, COORDINATOR, LIMIT_S)
        except HoldfastError:  # pushed out by the others
            return 1
        for frame in frames:
            if bend and self._dice.random() < 0.5:  # by its sender, or on the way
                self._say(sock, stamps.stamped(self._bent(frame)))
            else:
                data = stamps.stamped(frame)
                self._say(sock, self._bent(data) if bend else data)
        return len(frames)


def _read(sock: socket.socket, number: int) -> bytes:
    """As many bytes, or all there are until it is closed or silent."""
    sock.settimeout(0.2)
    data = b""
    try:
        while len(data) < number and (found := sock.recv(number - len(data))):
            data += found
    except TimeoutError:
        return data
    finally:
        sock.settimeout(LIMIT_S)
    return data
