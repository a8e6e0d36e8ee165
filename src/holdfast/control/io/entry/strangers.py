"""Those who have connected and not yet proven who they are: they cost little, and not for long.

Behind a port that speaks TLS, its handshake comes before their proof. Whatever they do, they can
only push out each other. When the process runs out of descriptors,
nobody new is let in for a moment; the run goes on.
"""

import errno
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.auth.handshake import COURIER, Answerer, Identity
from holdfast.auth.stamps import Stamps
from holdfast.auth.tls import TlsListener, knocks_with_tls, turn_away
from holdfast.auth.tls_socket import TlsSocket
from holdfast.errors import HandshakeFailed

HANDSHAKE_LIMIT_S = 5.0  # for all of it
_AT_ONCE = 16  # taken in one turn: those who belong to the run want to be heard too
_PAUSE_S = 0.2
COUNT_S = 10.0  # those that were sent away are told of at most this often
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


TakeCourier = Callable[[Identity, socket.socket, Stamps], None]


def send_away(peer: Identity, sock: socket.socket, stamps: Stamps) -> None:
    sock.close()


@dataclass(eq=False, slots=True)
class Stranger:
    sock: socket.socket
    answerer: Answerer
    until_s: float
    has_knocked: bool = False  # as it should: with TLS, or without
    has_spoken: bool = False  # a whole hello

    def fileno(self) -> int:
        return self.sock.fileno()


class Strangers:
    """``most`` of them are kept; one more, and the oldest that has said nothing has to go.

    ``take_courier`` gets those who come for files: they are for nobody else here.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        secret: bytes,
        me: Identity,
        most: int,
        take_courier: TakeCourier = send_away,
    ) -> None:
        self._selector, self._listener = selector, listener
        self._tls = listener.tls if isinstance(listener, TlsListener) else None
        self._binding = b"" if self._tls is None else self._tls.binding
        self._secret, self._me, self._most = secret, me, most
        self._take_courier = take_courier
        self._here: dict[Stranger, None] = {}  # in the order they came
        self._paused_until_s: float | None = None
        self._num_refused = 0  # did not prove anything, since they were last counted
        self._counted_s = 0.0

    def open(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def num_refused(self) -> int:
        """Since they were last counted."""
        return self._num_refused

    def __len__(self) -> int:
        return len(self._here)

    def accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock = self._listener.accept()[0]
            except BlockingIOError:
                return
            except OSError as why:  # a caller that gave up, or no descriptor is left
                if why.errno in _EXHAUSTED:
                    self._pause()
                    return
                continue
            self._take(sock)

    def read(self, stranger: Stranger) -> tuple[Identity, socket.socket, Stamps] | None:
        """Who it is, when it has proven it: it is no stranger any more."""
        if stranger not in self._here:
            return None  # it had to go for another one a moment ago
        try:
            if not self._is_ready(stranger):
                return None
            data = stranger.sock.recv(stranger.answerer.wanted)
            if not data:
                raise HandshakeFailed("closed")
            answer = stranger.answerer.feed(data)
            if answer:
                stranger.has_spoken = True
                if stranger.sock.send(answer) != len(answer):
                    raise HandshakeFailed("takes nothing")
        except BlockingIOError:
            return None
        except (OSError, HandshakeFailed):
            self._refuse(stranger)
            return None
        peer, stamps = stranger.answerer.peer, stranger.answerer.stamps
        if peer is None or stamps is None:
            return None
        del self._here[stranger]
        self._selector.unregister(stranger)
        if peer.role == COURIER:
            self._take_courier(peer, stranger.sock, stamps)
            return None
        return peer, stranger.sock, stamps

    def _is_ready(self, stranger: Stranger) -> bool:
        """For its proof. Garbage is seen by its first byte, before it costs more than that."""
        if not stranger.has_knocked:
            if knocks_with_tls(stranger.sock) != (self._tls is not None):
                turn_away(stranger.sock)
                raise HandshakeFailed("TLS without need, or none where it is needed")
            stranger.has_knocked = True
            if self._tls is not None:
                stranger.sock = self._tls.secured(stranger.sock)
        return not isinstance(stranger.sock, TlsSocket) or stranger.sock.shake()

    def tick(self, now_s: float) -> None:
        for stranger in [one for one in self._here if now_s > one.until_s]:
            self._refuse(stranger)
        if self._paused_until_s is not None and now_s > self._paused_until_s:
            self._paused_until_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def count_refused(self, now_s: float) -> int:
        """Since the last time; 0: there were none, or it is too early to tell of them again."""
        if not self._num_refused or now_s - self._counted_s < COUNT_S:
            return 0
        number, self._num_refused, self._counted_s = self._num_refused, 0, now_s
        return number

    def close(self) -> None:
        for stranger in list(self._here):
            self._drop(stranger)

    def _take(self, sock: socket.socket) -> None:
        if len(self._here) >= self._most:
            silent = (one for one in self._here if not one.has_spoken)
            self._refuse(next(silent, next(iter(self._here))))
        sock.setblocking(False)
        until_s = time.monotonic() + HANDSHAKE_LIMIT_S
        stranger = Stranger(sock, Answerer(self._secret, self._me, self._binding), until_s)
        self._here[stranger] = None
        self._selector.register(stranger, selectors.EVENT_READ)

    def _pause(self) -> None:
        """Out of descriptors: nobody is taken for a moment, and half of those here have to go."""
        for stranger in list(self._here)[: (len(self._here) + 1) // 2]:
            self._refuse(stranger)
        self._selector.unregister(self._listener)
        self._paused_until_s = time.monotonic() + _PAUSE_S

    def _refuse(self, stranger: Stranger) -> None:
        self._num_refused += 1
        self._drop(stranger)

    def _drop(self, stranger: Stranger) -> None:
        del self._here[stranger]
        self._selector.unregister(stranger)
        stranger.sock.close()
