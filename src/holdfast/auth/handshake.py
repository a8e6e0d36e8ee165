"""Who is at the other end: both sides prove that they know the run's secret, before anything else.

    caller   -> hello:  its nonce, who it is
    answerer <- answer: its own nonce, who it is, proof
    caller   -> proof

A proof is an HMAC-SHA256 with the run's secret over the side it comes from, the version, both
nonces and both identities. So the secret never travels; what was recorded or reflected proves
nothing, because the other side's nonce is new; and nobody can pass as another role, name or
generation. Both sides then have the same two keys, made from the secret and both nonces: with them
they stamp all that follows, so that whoever has only passed the three messages on cannot put in a
word of its own. Messages have fixed sizes: there is no length to lie about. What goes wrong is said
only on this side; the other one sees a closed connection.

Inside of TLS both proofs and keys also take in the certificate (``binding``): the one that the
caller sees, and the one that the answerer has. Whoever sits in between with another one can do
nothing, also if the caller was not told which to expect; nor can TLS be talked away.
"""

import hmac
import secrets
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

from holdfast.auth.stamps import Stamps
from holdfast.errors import HandshakeBroken, HandshakeFailed, ProtocolError
from holdfast.names import WORKER

VERSION = 3
SECRET_BYTES = 32
COORDINATOR, AGENT, WORKER_ROLE, JOINER = "coordinator", "agent", "worker", "joiner"
OPERATOR = "operator"  # somebody at a keyboard
COURIER = "courier"  # of a worker: a second connection, for files
ROLES = (COORDINATOR, AGENT, WORKER_ROLE, JOINER, OPERATOR, COURIER)
MOST_GENERATION = (1 << 32) - 1

_NONCE_BYTES = 32
_PROOF_BYTES = 32
_NAME_BYTES = 16
_HELLO_MAGIC, _ANSWER_MAGIC, _PROOF_MAGIC = b"HFhs", b"HFan", b"HFpr"
_IDENTITY = struct.Struct(f"!BI{_NAME_BYTES}s")  # role, generation, name padded with zeros
_HEAD = struct.Struct("!4sB")  # magic, version
_HELLO_BYTES = _HEAD.size + _NONCE_BYTES + _IDENTITY.size
_ANSWER_BYTES = _HELLO_BYTES + _PROOF_BYTES
_LAST_BYTES = _HEAD.size + _PROOF_BYTES

# The first byte of what a peer says who speaks TLS, when it calls and when it refuses.
TLS_HANDSHAKE, TLS_ALERT = 0x16, 0x15


@dataclass(frozen=True, slots=True)
class Identity:
    """``name``: pipeline.stage of a worker or courier, or the place a joiner wants; else empty.

    ``generation``: which launcher of the run it belongs to; 0: it does not know yet.
    """

    role: str
    name: str = ""
    generation: int = 0

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ProtocolError(f"role {self.role!r}: expected one of {', '.join(ROLES)}")
        named = WORKER.fits(self.name)
        may_be_empty = self.role != WORKER_ROLE
        may_be_named = self.role in (WORKER_ROLE, JOINER, COURIER)
        if not (named and may_be_named) and not (self.name == "" and may_be_empty):
            raise ProtocolError(f"name {self.name!r} of a {self.role}: not of its form")
        if type(self.generation) is not int or not 0 <= self.generation <= MOST_GENERATION:
            raise ProtocolError(f"generation {self.generation!r}: expected 0 to {MOST_GENERATION}")

    def __str__(self) -> str:
        return f"{self.role} {self.name}".strip()


class Caller:
    """The side that has made the connection: send :attr:`hello`, then feed what comes."""

    def __init__(self, secret: bytes, me: Identity, expect_role: str, binding: bytes = b"") -> None:
        self._secret, self._expect_role = _checked(secret), expect_role
        self._binding = binding
        self._said = _said(me)
        self.hello = _HEAD.pack(_HELLO_MAGIC, VERSION) + self._said
        self._received = bytearray()
        self.peer: Identity | None = None  # proven; None: not yet
        self.stamps: Stamps | None = None  # for all that follows

    @property
    def wanted(self) -> int:
        """How many bytes it still takes; 0: done."""
        return 0 if self.peer is not None else _ANSWER_BYTES - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now. HandshakeFailed: close the connection."""
        if not self._received and data[:1] == bytes([TLS_ALERT]):
            raise HandshakeFailed(
                "TLS is spoken there; give the fingerprint of the run's certificate, which is in "
                "its ticket and in the command that 'holdfast train' shows"
            )
        if not _take(self._received, data, self.wanted):
            return b""
        answer = bytes(self._received)
        theirs, proof = _opened(answer[:-_PROOF_BYTES], _ANSWER_MAGIC), answer[-_PROOF_BYTES:]
        peer = _identity(theirs)
        _check(proof, _proof(self._secret, b"answer", self._said, theirs, self._binding))
        if peer.role != self._expect_role:
            raise HandshakeFailed(f"a {peer.role} answers; expected a {self._expect_role}")
        self.peer = peer
        self.stamps = Stamps(*_keys(self._secret, self._said, theirs, self._binding))
        own = _proof(self._secret, b"call", self._said, theirs, self._binding)
        return _HEAD.pack(_PROOF_MAGIC, VERSION) + own


class Answerer:
    """The side that was called: feed what comes."""

    def __init__(self, secret: bytes, me: Identity, binding: bytes = b"") -> None:
        self._secret, self._binding = _checked(secret), binding
        self._said = _said(me)
        self._received = bytearray()
        self._theirs = b""
        self._claimed: Identity | None = None
        self.peer: Identity | None = None  # proven; None: not yet
        self.stamps: Stamps | None = None  # for all that follows

    @property
    def wanted(self) -> int:
        """How many bytes it still takes; 0: done. Take no more: what follows is no part of it."""
        if self.peer is not None:
            return 0
        return (_LAST_BYTES if self._theirs else _HELLO_BYTES) - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """What is to be sent now. HandshakeFailed: close the connection."""
        if not _take(self._received, data, self.wanted):
            return b""
        message = bytes(self._received)
        self._received.clear()
        if self._theirs:
            self._end(message)
            return b""
        self._theirs = _opened(message, _HELLO_MAGIC)
        self._claimed = _identity(self._theirs)
        own = _proof(self._secret, b"answer", self._theirs, self._said, self._binding)
        return _HEAD.pack(_ANSWER_MAGIC, VERSION) + self._said + own

    def _end(self, message: bytes) -> None:
        proof = _opened(message, _PROOF_MAGIC)
        _check(proof, _proof(self._secret, b"call", self._theirs, self._said, self._binding))
        self.peer = self._claimed
        of_caller, own = _keys(self._secret, self._theirs, self._said, self._binding)
        self.stamps = Stamps(own, of_caller)


def call(
    sock: socket.socket,
    secret: bytes,
    me: Identity,
    expect_role: str,
    limit_s: float,
    binding: bytes = b"",
) -> tuple[Identity, Stamps]:
    """Over a connection that was just made; who answers. HandshakeFailed: close it."""
    side = Caller(secret, me, expect_role, binding)
    return _talk(sock, side, side.hello, limit_s)


def answer(
    sock: socket.socket, secret: bytes, me: Identity, limit_s: float, binding: bytes = b""
) -> tuple[Identity, Stamps]:
    """Over a connection that was just accepted; who calls. HandshakeFailed: close it."""
    return _talk(sock, Answerer(secret, me, binding), b"", limit_s)


def _talk(
    sock: socket.socket, side: Caller | Answerer, first: bytes, limit_s: float
) -> tuple[Identity, Stamps]:
    """One limit for all of it: whoever sends a byte now and then gains nothing."""
    deadline_s = time.monotonic() + limit_s
    before_s = sock.gettimeout()
    try:
        to_send = first
        while side.peer is None or side.stamps is None or to_send:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise HandshakeBroken(f"not done within {limit_s:g} s")
            sock.settimeout(left_s)
            if to_send:
                sock.sendall(to_send)
                to_send = b""
                continue
            with suppress(BlockingIOError):  # of TLS, half a record
                data = sock.recv(side.wanted)
                if not data:
                    raise HandshakeBroken("the other side closed the connection")
                to_send = side.feed(data)
        sock.settimeout(before_s)
    except OSError as why:
        raise HandshakeBroken(f"the connection broke: {why}") from why
    return side.peer, side.stamps


def _checked(secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes: expected {SECRET_BYTES}")
    return secret


def _said(me: Identity) -> bytes:
    role = ROLES.index(me.role)
    return secrets.token_bytes(_NONCE_BYTES) + _IDENTITY.pack(
        role, me.generation, me.name.encode("ascii")
    )


def _identity(said: bytes) -> Identity:
    role, generation, name = _IDENTITY.unpack(said[_NONCE_BYTES:])
    try:
        return Identity(ROLES[role], name.rstrip(b"\0").decode("ascii"), generation)
    except (IndexError, UnicodeDecodeError, ProtocolError) as why:
        raise HandshakeFailed(f"no identity: {why}") from why


def _take(received: bytearray, data: bytes, wanted: int) -> bool:
    """Whether the message is whole now."""
    if len(data) > wanted:
        raise HandshakeFailed(f"{len(data)} bytes where {wanted} were expected")
    received += data
    return len(data) == wanted


def _opened(message: bytes, magic: bytes) -> bytes:
    """What follows its head."""
    found, version = _HEAD.unpack_from(message)
    if found != magic:
        raise HandshakeFailed("it does not speak as a process of Holdfast")
    if version != VERSION:
        raise HandshakeFailed(f"version {version} of the handshake; this is version {VERSION}")
    return message[_HEAD.size :]


def _proof(secret: bytes, side: bytes, *said: bytes) -> bytes:
    """``said``: by the caller, by the answerer, and the binding."""
    return _derived(secret, b"holdfast handshake", side, *said)


def _keys(secret: bytes, *said: bytes) -> tuple[bytes, bytes]:
    """For what the caller sends, and for what the answerer sends. Nobody else can make them."""
    label = b"holdfast stamps"
    ways = (b"from caller", b"from answerer")
    of_caller, of_answerer = (_derived(secret, label, way, *said) for way in ways)
    return of_caller, of_answerer


def _derived(secret: bytes, label: bytes, what: bytes, *said: bytes) -> bytes:
    """The secret is random and as long as a key: HKDF would only expand it, in this way."""
    fields = (label, bytes([VERSION]), what, *said)
    text = b"".join(struct.pack("!I", len(field)) + field for field in fields)
    return hmac.digest(secret, text, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise HandshakeFailed("it does not know the secret of this run")
