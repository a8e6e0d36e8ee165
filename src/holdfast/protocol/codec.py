"""Bytes <-> messages: length-prefixed JSON, versioned, size-limited, checked field by field."""

import json
import struct
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.errors import ProtocolError
from holdfast.protocol.messages import Message

VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}
_HINTS = {name: get_type_hints(cls) for name, cls in _CLASSES.items()}


def encode(message: Message) -> bytes:
    values = {"v": VERSION, "kind": type(message).__name__, **asdict(message)}
    body = json.dumps(values, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{values['kind']} of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Message:
    try:
        values = json.loads(bytes(body))
        version, kind = values.pop("v"), values.pop("kind")
        if version != VERSION:
            raise ProtocolError(f"message of protocol version {version}; this is version {VERSION}")
        cls = _CLASSES[kind]
        _check_fields(kind, values)
        message: Message = cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        raise ProtocolError(f"cannot read message {bytes(body[:80])!r}: {why!r}") from why
    return message


def _check_fields(kind: str, values: dict[str, Any]) -> None:
    expected = {f.name for f in fields(_CLASSES[kind])}
    if values.keys() != expected:
        raise ProtocolError(f"{kind}: fields {sorted(values)}; expected {sorted(expected)}")
    for name, value in values.items():
        if not _fits(value, _HINTS[kind][name]):
            raise ProtocolError(f"{kind}.{name}={value!r}: expected {_HINTS[kind][name]}")


def _fits(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        return isinstance(value, list) and all(_fits(item, inner) for item in value)
    if get_origin(hint) is dict:
        _, inner = get_args(hint)
        return isinstance(value, dict) and all(_fits(item, inner) for item in value.values())
    return type(value) is hint


class Splitter:
    """Cuts a stream of bytes into messages, however it was chopped on the way."""

    def __init__(self, limit_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self.limit_bytes:
                raise ProtocolError(
                    f"message of {length} bytes announced; at most {self.limit_bytes}"
                )
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return messages
