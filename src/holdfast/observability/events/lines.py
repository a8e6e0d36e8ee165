"""Events as lines of JSON, and back."""

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias, get_args, get_type_hints

from holdfast.observability.events.kinds import SCHEMA, Event
from holdfast.observability.events.run import OpRow, TransferRow
from holdfast.observability.jsonfile import encode

_MOST = 2**63 - 1

_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Event)}
_FIELDS = {cls: tuple(each.name for each in fields(cls)) for cls in _CLASSES.values()}


def encode_event(event: Event) -> str:
    values = {name: getattr(event, name) for name in _FIELDS[type(event)]}
    return encode({"event": type(event).__name__, **values})


def decode_event(line: str) -> Event:
    """Raises ValueError for anything but a line that :func:`encode_event` wrote."""
    try:
        values = json.loads(line)
        kind = values.pop("event")
        if values.get("schema", 0) > SCHEMA:
            raise ValueError(f"form {values['schema']} of events: this one knows up to {SCHEMA}")
        readers = _READERS[kind]
        read = {name: readers[name](value) for name, value in values.items()}
        return _CLASSES[kind](**read)  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise ValueError(f"not an event: {why!r}") from why


_Reader: TypeAlias = Callable[[Any], Any]


def _only(kind: type[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # a bool is no number
            raise TypeError(f"{reprlib.repr(value)}: expected {kind.__name__}")
        return value

    return read


_text, _list, _dict = _only(str), _only(list), _only(dict)


def _whole(value: Any) -> int:
    if type(value) is not int or not -_MOST <= value <= _MOST:
        raise TypeError(f"{reprlib.repr(value)}: expected a whole number of at most 64 bits")
    return value


def _maybe(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _all(read: _Reader) -> _Reader:
    return lambda values: tuple(map(read, _list(values)))


def _by_name(read: _Reader) -> _Reader:
    return lambda values: {name: read(value) for name, value in _dict(values).items()}


def _op_times(ops: Iterable[tuple[str, float, float]]) -> tuple[OpRow, ...]:
    return tuple((_text(name), float(start_s), float(end_s)) for name, start_s, end_s in ops)


def _transfer_times(rows: Iterable[TransferRow]) -> tuple[TransferRow, ...]:
    return tuple(
        (_text(who), _text(kind), _whole(count), _whole(size), float(moved_s))
        for who, kind, count, size, moved_s in rows
    )


# What JSON changes on the way: tuples become lists, and NaN and infinity are written as text.
_READ: dict[Any, _Reader] = {
    bool: _only(bool),
    int: _whole,
    float: float,
    float | None: _maybe(float),
    str: _text,
    str | None: _maybe(_text),
    tuple[int, ...]: _all(_whole),
    tuple[str, ...]: _all(_text),
    tuple[float, ...]: _all(float),
    tuple[OpRow, ...]: _op_times,
    tuple[TransferRow, ...]: _transfer_times,
    Mapping[str, str]: _by_name(_text),
    Mapping[str, int]: _by_name(_whole),
    Mapping[str, float]: _by_name(float),
}
_READERS = {
    name: {field: _READ[hint] for field, hint in get_type_hints(cls).items()}
    for name, cls in _CLASSES.items()
}
