"""TLS 1.3 around a connection: without authorities and names, and nothing older.

Whether the other side has the right certificate is said by its fingerprint, if that is known, and
always by the proofs of both sides, which take it in (``handshake.py``).
"""

import hmac
import os
import socket
import ssl
import time
from functools import cache

from holdfast.auth.certificate import TlsKey, fingerprint_of
from holdfast.auth.handshake import TLS_ALERT, TLS_HANDSHAKE
from holdfast.auth.tls_socket import TlsSocket, secured
from holdfast.errors import HandshakeBroken, HandshakeFailed

_ACCESS_DENIED = 49
REFUSAL = bytes([TLS_ALERT, 3, 3, 0, 2, 2, _ACCESS_DENIED])
"""Said to those who speak TLS where nobody does, and the other way round: both know it for TLS."""

_MOST_UNREAD_BYTES = 1 << 14


class TlsServer:
    """The side that is called, for all who call."""

    def __init__(self, key: TlsKey) -> None:
        self.binding = key.binding
        self._context = _context(ssl.PROTOCOL_TLS_SERVER)
        self._context.num_tickets = 0  # nobody resumes a session
        # Python loads a key from a file only; this one is nowhere on disk.
        descriptor = os.memfd_create("holdfast", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as file:
            file.write(key.pem)
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")

    def secured(self, sock: socket.socket) -> TlsSocket:
        """Whose handshake has yet to come."""
        return secured(self._context, sock, is_server=True)


class TlsListener(socket.socket):
    """A port behind which TLS is spoken, once somebody was let in."""

    tls: TlsServer

    @classmethod
    def of(cls, listener: socket.socket, key: TlsKey) -> "TlsListener":
        """``listener`` is as good as closed."""
        tls = TlsServer(key)
        made = cls(fileno=listener.detach())
        made.tls = tls
        return made


def calling(sock: socket.socket) -> TlsSocket:
    """``sock`` is as good as closed."""
    return secured(_calling_context(), sock, is_server=False)


def greet(sock: TlsSocket, certificate: str, limit_s: float) -> bytes:
    """Over a connection that was just made; what the proofs are bound to.

    ``certificate``: the fingerprint that is expected; empty: it is not known, and shown by the
    proofs alone. HandshakeFailed: close it.
    """
    deadline_s = time.monotonic() + limit_s
    try:
        while not sock.shake():
            sock.wait(max(0.001, deadline_s - time.monotonic()))
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError, TimeoutError) as why:
        raise HandshakeBroken(f"the connection broke before TLS was agreed on: {why}") from why
    except ssl.SSLError as why:
        raise HandshakeFailed(
            f"no TLS 1.3 of a run of Holdfast is spoken there ({why.reason}); if the run there is "
            "without TLS, leave out the certificate; else take address and certificate anew"
        ) from why
    except OSError as why:
        raise HandshakeBroken(f"the connection broke: {why}") from why
    found = fingerprint_of(sock.getpeercert(binary_form=True) or b"")
    if certificate and not hmac.compare_digest(found, certificate):
        raise HandshakeFailed(
            f"another certificate is shown there ({found[:16]}...; expected "
            f"{certificate[:16]}...): another run, or somebody in between; take address and "
            "certificate anew from the run"
        )
    return bytes.fromhex(found)


def knocks_with_tls(sock: socket.socket) -> bool:
    """Whether what has come begins as TLS does. Takes nothing away. BlockingIOError: nothing."""
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise HandshakeFailed("closed")
    return first[0] == TLS_HANDSHAKE


def turn_away(sock: socket.socket) -> None:
    """Who speaks TLS where nobody does, or plain text where TLS is spoken: it may know why."""
    sock.send(REFUSAL)
    sock.recv(_MOST_UNREAD_BYTES)  # closed with something unread, the kernel takes our word back


@cache
def _calling_context() -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsSocket
    return context
