"""Bytes <-> messages: length-prefixed JSON, versioned, size-limited, checked field by field."""

import json
import reprlib
import struct
from dataclasses import asdict, fields
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from holdfast.errors import ProtocolError
from holdfast.protocol.messages import Message
from holdfast.stamps import STAMP_BYTES, Stamps

VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Message)}
_HINTS = {name: get_type_hints(cls, include_extras=True) for name, cls in _CLASSES.items()}


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
        shown = reprlib.repr(str(why))  # it may repeat all of the message
        raise ProtocolError(f"cannot read message {bytes(body[:80])!r}: {shown}") from why
    return message


def _check_fields(kind: str, values: dict[str, Any]) -> None:
    expected = {f.name for f in fields(_CLASSES[kind])}
    if values.keys() != expected:
        raise ProtocolError(f"{kind}: fields {sorted(values)}; expected {sorted(expected)}")
    for name, value in values.items():
        if not _fits(value, _HINTS[kind][name]):
            shown = reprlib.repr(value)
            raise ProtocolError(f"{kind}.{name}={shown}: expected {_expected(_HINTS[kind][name])}")


def _fits(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Annotated:
        base, *checks = get_args(hint)
        return _fits(value, base) and all(check.fits(value) for check in checks)
    if hint is float:
        return type(value) in (int, float)
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        return isinstance(value, list) and all(_fits(item, inner) for item in value)
    if get_origin(hint) is dict:
        of_keys, inner = get_args(hint)
        return isinstance(value, dict) and all(
            _fits(key, of_keys) and _fits(item, inner) for key, item in value.items()
        )
    return type(value) is hint


def _expected(hint: Any) -> str:
    checks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return ", ".join(check.what for check in checks) or str(hint)


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
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(
                    f"message of {length} bytes announced; at most {MAX_MESSAGE_BYTES}"
                )
            end = _LENGTH.size + length + STAMP_BYTES
            if len(self._buffer) < end:
                break
            messages.append(decode(self._stamps.opened(self._buffer[:end])[_LENGTH.size :]))
            del self._buffer[:end]
        return messages
