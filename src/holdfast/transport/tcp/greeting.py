"""How a link of one sender and one receiver begins, and how the receiver answers on it.

A *session* is one sender's numbering of its messages to one receiver. It outlives a broken
connection: the hello of the next one names it, and the answer says how many of its messages
have come, so that nothing is lost and nothing comes twice. Knows nothing of sockets and of keys:
both carry a stamp on the wire, which is put on and checked outside.
"""

import struct
from typing import NamedTuple

from holdfast.auth.stamps import STAMP_BYTES
from holdfast.errors import ProtocolError
from holdfast.transport.frame import VERSION, check_size

_HELLO_MAGIC = b"HFhi"
# magic, version, whether it was answered before | session | epoch
_HELLO = struct.Struct("<4s2BQI")
_ANSWER = struct.Struct("<Q")

HELLO_BYTES = _HELLO.size + STAMP_BYTES
ANSWER_BYTES = _ANSWER.size + STAMP_BYTES
GOODBYE = 2**64 - 1
"""Answered instead of a count: nothing more is taken in this session."""


class SessionHello(NamedTuple):
    session: int
    epoch: int
    resumes: bool  # a connection of this session was answered before


def encode_hello(hello: SessionHello) -> bytes:
    session, epoch, resumes = hello
    try:
        return _HELLO.pack(_HELLO_MAGIC, VERSION, resumes, session, epoch)
    except struct.error as error:
        raise ProtocolError(f"{hello} does not fit the wire format: {error}") from error


def decode_hello(data: bytes) -> SessionHello:
    check_size(data, _HELLO.size)
    magic, version, resumes, session, epoch = _HELLO.unpack_from(data)
    if magic != _HELLO_MAGIC or version != VERSION or resumes > 1:
        raise ProtocolError(f"expected a hello of version {VERSION}, got {magic!r} {version}")
    return SessionHello(session, epoch, bool(resumes))


def encode_answer(num_received: int) -> bytes:
    """How many messages of the session have come; or GOODBYE."""
    return _ANSWER.pack(num_received)


def decode_answer(data: bytes) -> int:
    check_size(data, _ANSWER.size)
    (num_received,) = _ANSWER.unpack_from(data)
    return int(num_received)
