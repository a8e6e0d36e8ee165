"""Connected transports for the tests, and threads that can be seen to wait."""

import itertools
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from helpers.certificates import tls_key
from holdfast.auth import handshake
from holdfast.auth.stamps import Stamps
from holdfast.cluster import WorkerId
from holdfast.errors import TransportClosed
from holdfast.transport.base import ALONE, Bundle, Channel, Limits, Tag, Transport
from holdfast.transport.frame import checksum_of, encode_frame, numbered, payload_view
from holdfast.transport.link_shaping import FaultyTransport
from holdfast.transport.local.transport import LocalHub, LocalTransport
from holdfast.transport.tcp.dialing import Dialer
from holdfast.transport.tcp.greeting import ANSWER_BYTES, SessionHello, decode_answer, encode_hello
from holdfast.transport.tcp.transport import TcpTransport

ALICE, BOB, CAROL = WorkerId(0, 0), WorkerId(0, 1), WorkerId(1, 0)
SECRET = b"what only the workers of a run k"
LIMIT_S = 60.0  # no test waits this long unless it fails


def activation(step: int, **rest: int) -> Tag:
    return Tag(Channel.ACTIVATION, step, **rest)


def state(step: int, **rest: int) -> Tag:
    return Tag(Channel.STATE, step, **rest)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.001)


class Frame(NamedTuple):
    """A message without its stamp, which whoever says it puts on."""

    header: bytes
    payload: bytes = b""


def frame(
    tag: Tag,
    tensor: torch.Tensor,
    *,
    sequence: int = 1,
    epoch: int = 0,
    checksum: int | None = None,
    bundle: Bundle = ALONE,
) -> Frame:
    payload = payload_view(tensor)
    checksum = checksum_of(payload) if checksum is None else checksum
    header = encode_frame(epoch, tag, tensor, 1 << 40, bundle=bundle, checksum=checksum)
    return Frame(numbered(header, sequence), bytes(payload))


_sessions = itertools.count(1)


def worker(me: WorkerId) -> handshake.Identity:
    return handshake.Identity(handshake.WORKER_ROLE, str(me))


class Caller:
    """A worker that is nothing but a socket. As a context it hangs up at its end."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=LIMIT_S)
        self.stamps: Stamps | None = None

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def introduce(self, me: WorkerId) -> "Caller":
        """Prove to be this worker."""
        return self.introduce_as(worker(me))

    def introduce_as(self, me: handshake.Identity) -> "Caller":
        _, self.stamps = handshake.call(self.socket, SECRET, me, handshake.WORKER_ROLE, LIMIT_S)
        return self

    def hello(
        self, epoch: int = 0, *, session: int | None = None, resumes: bool = False
    ) -> "Caller":
        session = next(_sessions) if session is None else session
        assert self.stamps is not None
        self.socket.sendall(
            self.stamps.stamped(encode_hello(SessionHello(session, epoch, resumes)))
        )
        return self

    def say(self, *said: bytes | Frame) -> "Caller":
        """Bytes go as they are."""
        with suppress(ConnectionError):  # it may have been hung up on already
            self.socket.sendall(b"".join(map(self._wire_form, said)))
        return self

    def _wire_form(self, said: bytes | Frame) -> bytes:
        if isinstance(said, bytes):
            return said
        assert self.stamps is not None
        return self.stamps.stamped(said.header) + said.payload

    def answer(self) -> int:
        data = b""
        while len(data) < ANSWER_BYTES:
            news = self.socket.recv(ANSWER_BYTES - len(data))
            if not news:
                raise ConnectionError("hung up on")
            data += news
        assert self.stamps is not None
        return decode_answer(self.stamps.opened_unnumbered(data))

    def is_hung_up(self) -> bool:
        """Waits for it."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            return True
        return True


class Background(threading.Thread):
    """A call in another thread."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._call, self._arguments = call, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call(*self._arguments)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(LIMIT_S)
        assert not self.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result

    def wait_until_blocked(self) -> "Background":
        wait_until(lambda: self.is_blocked() or not self.is_alive())
        assert self.is_alive(), "the call ended and should wait"
        return self

    def is_blocked(self) -> bool:
        frame = sys._current_frames().get(self.ident or 0)
        # Of a thread that runs meanwhile Python may show what is no frame any more.
        return getattr(frame, "f_code", None) is threading.Condition.wait.__code__


def hinder_all(transports: Iterable[FaultyTransport], delay_s: float) -> None:
    for transport in transports if delay_s else ():
        for peer in (ALICE, BOB, CAROL):
            transport.shape_link(peer, delay_s)


class LocalCluster:
    delay_s = 0.0  # of every link
    pause_s = 0.03  # in which a connection is made, also beside other work

    def __init__(self) -> None:
        self._hub = LocalHub()
        self._transports: list[Transport] = []

    def start(self, *workers: WorkerId, limits: Limits | None = None) -> list[Transport]:
        made = [LocalTransport(worker, self._hub, limits=limits) for worker in workers]
        hinder_all(made, self.delay_s)
        self._transports += made
        return list(made)

    def connect_all(self) -> None:
        """Everyone can always find everyone."""

    def cut(self) -> int:
        """Nothing to cut: there are no connections."""
        return 0

    def close(self) -> None:
        for transport in self._transports:
            transport.close()


class TcpCluster:
    delay_s = 0.0
    pause_s = 0.03
    encrypts = False

    def __init__(self) -> None:
        self._transports: dict[WorkerId, TcpTransport] = {}
        self._replaced: list[TcpTransport] = []
        self.addresses: dict[WorkerId, tuple[str, int]] = {}
        self._dialed: list[socket.socket] = []
        new_socket = Dialer.new_socket

        def noted(dialer: Dialer) -> tuple[socket.socket, tuple[str, int]]:
            connection, resolved = new_socket(dialer)
            self._dialed.append(connection)
            return connection, resolved

        secured = Dialer.secured

        def noted_again(dialer: Dialer, connection: socket.socket) -> socket.socket:
            self._dialed.append(secured(dialer, connection))
            return self._dialed[-1]

        self._noting = [
            patch.object(Dialer, "new_socket", noted),
            patch.object(Dialer, "secured", noted_again),
        ]
        for each in self._noting:
            each.start()

    def _made(self, worker: WorkerId, limits: Limits | None) -> TcpTransport:
        return TcpTransport(worker, SECRET, limits=limits, encrypts=self.encrypts)

    def start(self, *workers: WorkerId, limits: Limits | None = None) -> list[Transport]:
        made = {worker: self._made(worker, limits) for worker in workers}
        hinder_all(made.values(), self.delay_s)
        self.addresses |= {worker: transport.listen() for worker, transport in made.items()}
        self._replaced += [old for worker, old in self._transports.items() if worker in made]
        self._transports |= made
        for worker, transport in self._transports.items():
            news = self.addresses if worker in made else {w: self.addresses[w] for w in made}
            with suppress(TransportClosed):  # a dead worker needs no news
                transport.connect(news)
        return list(made.values())

    def connect_all(self) -> None:
        for transport in self._transports.values():
            transport.connect(self.addresses)

    def cut(self) -> int:
        """Break every connection, as the kernel or the network would; returns how many."""
        num_cut = 0
        for connection in list(self._dialed):
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)
                num_cut += 1
        return num_cut

    def close(self) -> None:
        for each in self._noting:
            each.stop()
        for transport in [*self._transports.values(), *self._replaced]:
            transport.close()


class SlowLocalCluster(LocalCluster):
    delay_s = 0.002


class SlowTcpCluster(TcpCluster):
    delay_s = 0.002


class TlsCluster(TcpCluster):
    encrypts = True
    pause_s = 0.5

    def __init__(self) -> None:
        tls_key()  # or nobody can make one
        super().__init__()


Cluster = LocalCluster | TcpCluster


@contextmanager
def running(kind: type[Cluster]) -> Iterator[Cluster]:
    """A cluster whose threads must not outlive it."""
    torch.set_num_threads(1)
    threads_before = set(threading.enumerate())
    cluster = kind()
    yield cluster
    cluster.close()
    left = [t for t in threading.enumerate() if t not in threads_before and "holdfast" in t.name]
    assert not left, "threads outlived their transport"
