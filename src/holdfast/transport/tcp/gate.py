"""The port for tensors: one thread for all who knock, and a thread of their own for none of them.

A stranger costs a descriptor for a moment. Who has not proven itself and said its hello within
one limit is hung up on; if too many wait at once, the one that has got least far goes, the oldest
first. Whoever is inside is never touched. Out of descriptors, the gate waits and goes on.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from time import monotonic

from holdfast.auth.handshake import COURIER, WORKER_ROLE, Answerer, Identity
from holdfast.auth.stamps import Stamps
from holdfast.auth.tls import TlsServer
from holdfast.auth.tls_socket import TlsSocket
from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ProtocolError
from holdfast.host.network import open_listener
from holdfast.host.scarce import patiently
from holdfast.transport.base import SocketAddress
from holdfast.transport.tcp.greeting import HELLO_BYTES, SessionHello, decode_hello
from holdfast.transport.tcp.sockets import BUFFER_BYTES, shut

MOST_WAITING = 128  # who have not yet proven who they are
_BACKLOG = 1024
_ACCEPT_AT_ONCE = 64
_PAUSE_S = 0.05  # when the process is out of descriptors


TakeCourier = Callable[[Identity, socket.socket, Stamps], None]


class Visitor:
    """What one caller has shown so far. Knows nothing of sockets."""

    def __init__(self, secret: bytes, me: Identity, binding: bytes = b"") -> None:
        """``binding``: to the certificate that it was shown."""
        self._handshake = Answerer(secret, me, binding)
        self._generation = me.generation
        self._hello = bytearray()
        self._has_spoken = False

    @property
    def wanted(self) -> int:
        """How many bytes it still takes; 0: it may come in."""
        return self._handshake.wanted or (0 if self.courier else HELLO_BYTES - len(self._hello))

    @property
    def courier(self) -> tuple[Identity, Stamps] | None:
        """It comes for files, and says no more here."""
        peer, stamps = self._handshake.peer, self._handshake.stamps
        if peer is None or stamps is None or peer.role != COURIER:
            return None
        return peer, stamps

    @property
    def rank(self) -> int:
        """How far it has got: nothing said, something, proven."""
        return 2 if self._handshake.peer is not None else int(self._has_spoken)

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now. ProtocolError: hang up."""
        self._has_spoken = True
        if self._handshake.peer is None:
            return self._handshake.feed(data)
        self._hello += data
        return b""

    def admitted(self) -> tuple[WorkerId, SessionHello, Stamps]:
        """Who it is: the name that it has proven, whatever it says later."""
        peer, stamps = self._handshake.peer, self._handshake.stamps
        if peer is None or stamps is None or peer.role != WORKER_ROLE:
            raise ProtocolError(f"{peer} calls for tensors: expected a worker")
        if peer.generation != self._generation:
            raise ProtocolError(f"{peer} is of launch {peer.generation}, not {self._generation}")
        try:
            return parse_worker(peer.name), decode_hello(stamps.opened(self._hello)), stamps
        except ValueError as why:
            raise ProtocolError(f"no worker: {why}") from why


class Gate:
    """``admit`` gets the connection of each worker; ``refused`` is called for each stranger.

    ``take_courier`` gets those who come for files.
    """

    def __init__(
        self,
        name: str,
        new_visitor: Callable[[], Visitor],
        *,
        limit_s: float,
        admit: Callable[[socket.socket, WorkerId, SessionHello, Stamps], None],
        refused: Callable[[], None],
        take_courier: TakeCourier,
    ) -> None:
        self._new_visitor, self._limit_s = new_visitor, limit_s
        self._tls: TlsServer | None = None
        self._admit, self._refused, self._take_courier = admit, refused, take_courier
        self._listener: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._closing = threading.Event()
        self._waiting: dict[socket.socket, tuple[Visitor, float]] = {}  # and until when
        self._resume_s: float | None = None  # when to accept again
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def open(self, address: SocketAddress, tls: TlsServer | None = None) -> SocketAddress:
        """``tls``: all who knock have to speak it."""
        self._tls = tls
        self._listener = patiently(lambda: _listener(address))
        self._selector = patiently(selectors.DefaultSelector)
        patiently(self._thread.start)
        host, port = self._listener.getsockname()[:2]
        return host, port

    def close(self) -> None:
        self._closing.set()
        if self._listener is not None:
            shut(self._listener)

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    # --- the thread ---

    def _run(self) -> None:
        assert self._listener is not None
        assert self._selector is not None
        with contextlib.closing(self._listener), self._selector as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(self._next_s()):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._waiting:
                        self._hear(selector, key.fileobj)
                self._look_at_the_clock(selector)
            for connection in list(self._waiting):
                self._turn_away(selector, connection)

    def _next_s(self) -> float | None:
        times_s = [until_s for _, until_s in self._waiting.values()]
        times_s += [] if self._resume_s is None else [self._resume_s]
        return max(0.0, min(times_s) - monotonic()) if times_s else None

    def _look_at_the_clock(self, selector: selectors.BaseSelector) -> None:
        now_s = monotonic()
        for connection in [c for c, (_, until_s) in self._waiting.items() if now_s >= until_s]:
            self._turn_away(selector, connection)
        if self._resume_s is not None and now_s >= self._resume_s:
            assert self._listener is not None
            self._resume_s = None
            selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # closing, a caller that gave up, or out of descriptors
                self._pause(selector)
                return
            try:
                self._take(selector, connection)
            except OSError:  # it has hung up already
                self._refused()

    def _take(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        connection.setblocking(False)
        if self._tls is not None:
            connection = self._tls.secured(connection)
        self._waiting[connection] = (self._new_visitor(), monotonic() + self._limit_s)
        selector.register(connection, selectors.EVENT_READ)
        if len(self._waiting) > MOST_WAITING:
            self._make_room(selector)

    def _pause(self, selector: selectors.BaseSelector) -> None:
        """Else the same caller would wake us again at once."""
        assert self._listener is not None
        self._make_room(selector)
        selector.unregister(self._listener)
        self._resume_s = monotonic() + _PAUSE_S

    def _make_room(self, selector: selectors.BaseSelector) -> None:
        strangers = [
            (v.rank, until_s, c) for c, (v, until_s) in self._waiting.items() if v.rank < 2
        ]
        if strangers:
            self._turn_away(selector, min(strangers, key=lambda one: one[:2])[2])

    def _hear(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        visitor, _ = self._waiting[connection]
        try:
            if isinstance(connection, TlsSocket) and not connection.shake():
                return
            data = connection.recv(visitor.wanted)
            if not data:
                raise ProtocolError("it hung up")
            answer = visitor.feed(data)
            if answer and connection.send(answer) < len(answer):
                raise ProtocolError("it does not read")
            if visitor.wanted:
                return
            admitted = None if visitor.courier else visitor.admitted()
        except BlockingIOError:
            return
        except (ProtocolError, OSError):
            self._turn_away(selector, connection)
            return
        selector.unregister(connection)
        del self._waiting[connection]
        connection.setblocking(True)
        if visitor.courier:
            peer, stamps = visitor.courier
            self._take_courier(peer, connection, stamps)
        elif admitted is not None:
            self._admit(connection, *admitted)

    def _turn_away(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        selector.unregister(connection)
        del self._waiting[connection]
        connection.close()
        self._refused()


def _listener(address: SocketAddress) -> socket.socket:
    listener = open_listener(*address, backlog=_BACKLOG, buffer_bytes=BUFFER_BYTES)
    listener.setblocking(False)
    return listener
