"""Bytes <-> messages: length-prefixed JSON, versioned, size-limited, checked field by field.

Long ones are compressed: a plan for thousands of workers goes to each of them.
"""

import json
import reprlib
import struct
import zlib
from dataclasses import asdict
from typing import Any, get_args, get_type_hints

from holdfast.auth.stamps import STAMP_BYTES, LongFrame, Stamps
from holdfast.errors import ProtocolError
from holdfast.protocol.build import Build, Misfit, builder
from holdfast.protocol.messages import Message

VERSION = 9
MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")
_COMPRESSED = 1 << 31  # in the length
_LONG_BYTES = 16 << 10
_FAST = 1  # of zlib's levels
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}
_BUILDERS: dict[str, dict[str, Build]] = {
    kind: {name: builder(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}
    for kind, cls in _CLASSES.items()
}


def encode(message: Message) -> bytes:
    kind = type(message).__name__
    values = {"v": VERSION, "kind": kind}
    values |= {name: getattr(message, name) for name in _BUILDERS[kind]}
    body = json.dumps(values, separators=(",", ":"), default=asdict).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{values['kind']} of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    if len(body) < _LONG_BYTES:
        return _LENGTH.pack(len(body)) + body
    packed = zlib.compress(body, _FAST)
    return LongFrame(_LENGTH.pack(len(packed) | _COMPRESSED) + packed)


def body_of(frame: bytes) -> bytes:
    """What ``encode`` has put into a frame, as it is to be decoded."""
    (length,) = _LENGTH.unpack_from(frame)
    body = frame[_LENGTH.size :]
    return _unpacked(body) if length & _COMPRESSED else body


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(packed, MAX_MESSAGE_BYTES)
    except zlib.error as why:
        raise ProtocolError(f"a compressed message cannot be read: {why}") from why
    if not unpacking.eof or unpacking.unused_data:
        raise ProtocolError(
            f"a compressed message of {len(packed)} bytes is cut off, has more behind its end, or "
            f"is over {MAX_MESSAGE_BYTES}"
        )
    return body


def decode(body: bytes | bytearray | memoryview) -> Message:
    try:
        values = json.loads(bytes(body))
        version, kind = values.pop("v"), values.pop("kind")
        if version != VERSION:
            raise ProtocolError(f"message of protocol version {version}; this is version {VERSION}")
        built = _built(kind, values)
        message: Message = _CLASSES[kind](**built)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        shown = reprlib.repr(str(why))  # it may repeat all of the message
        raise ProtocolError(f"cannot read message {bytes(body[:80])!r}: {shown}") from why
    return message


def _built(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    builders = _BUILDERS[kind]
    if values.keys() != builders.keys():
        raise ProtocolError(f"{kind}: fields {sorted(values)}; expected {sorted(builders)}")
    built: dict[str, Any] = {}
    name = ""
    try:
        for name, build in builders.items():
            built[name] = build(values[name])
    except Misfit as why:
        raise ProtocolError(f"{kind}{why.within(f'.{name}')}") from why
    return built


class Splitter:
    """Cuts a stream of bytes into messages, however it was chopped on the way.

    No message is looked into before its stamp was checked.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            length &= ~_COMPRESSED
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(
                    f"message of {length} bytes announced; at most {MAX_MESSAGE_BYTES}"
                )
            end = _LENGTH.size + length + STAMP_BYTES
            if len(self._buffer) < end:
                break
            messages.append(decode(body_of(self._stamps.opened(self._buffer[:end]))))
            del self._buffer[:end]
        return messages
