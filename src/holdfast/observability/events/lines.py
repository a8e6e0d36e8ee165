"""Events as lines of JSON, to a file and back. Emitting never raises."""

import json
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args, get_type_hints

from holdfast.errors import ConfigError
from holdfast.observability.event_files import Rotation, all_files
from holdfast.observability.events.kinds import Event
from holdfast.observability.events.run import OpRow, TransferRow
from holdfast.observability.jsonfile import encode

_BEGINNING = '{"event": '
_MOST = 2**63 - 1

_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Event)}
_FIELDS = {cls: tuple(each.name for each in fields(cls)) for cls in _CLASSES.values()}


class JsonLines:
    """Writes each event as one line, at once and whole, so that a crash loses nothing before it."""

    def __init__(self, file: BinaryIO, rotation: Rotation | None = None) -> None:
        self._file = file  # unbuffered: what failed to be written is not tried again
        self._rotation = rotation
        self._lock = threading.Lock()
        self.num_dropped = 0  # reported at the end of the run

    @classmethod
    def open(cls, path: Path) -> "JsonLines":
        return cls(path.open("ab", buffering=0))

    def emit(self, event: Event) -> None:
        with self._lock:
            try:
                line = encode_event(event).encode() + b"\n"
                whole = self._file.write(line) == len(line)
            # The disk is full, the file is closed, or a value has no form in JSON.
            except (OSError, ValueError, TypeError):
                whole = False
            self.num_dropped += not whole
            self._rotate()

    def _rotate(self) -> None:
        rotation = self._rotation
        if rotation is None or rotation.most_bytes is None:
            return
        try:
            if self._file.tell() > rotation.most_bytes:
                before, self._file = self._file, rotation.next()
                before.close()
        except (OSError, ValueError):
            self._rotation = None  # one large file is better than none

    def close(self) -> None:
        self._file.close()


def encode_event(event: Event) -> str:
    values = {name: getattr(event, name) for name in _FIELDS[type(event)]}
    return encode({"event": type(event).__name__, **values})


def decode_event(line: str) -> Event:
    """Raises ValueError for anything but a line that :func:`encode_event` wrote."""
    try:
        values = json.loads(line)
        kind = values.pop("event")
        readers = _READERS[kind]
        read = {name: readers[name](value) for name, value in values.items()}
        return _CLASSES[kind](**read)  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise ValueError(f"not an event: {why!r}") from why


def read_events(path: Path) -> list[Event]:
    """The events of a file and of older ones beside it, of a run that has ended or still writes.

    A torn line (the writer was killed, or the disk was full) is left out.
    """
    files = all_files(path)
    events = [event for file in files for event in _events_of(file)]
    return events if all_files(path) == files else read_events(path)  # one was begun meanwhile


def _events_of(path: Path) -> list[Event]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(f"cannot read events from {path}: {why}") from why
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(decode_event(line))
        except json.JSONDecodeError as why:
            if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                raise ConfigError(_foreign(path, number, why)) from why
        except ValueError as why:
            raise ConfigError(_foreign(path, number, why)) from why
    return events


def _foreign(path: Path, number: int, why: ValueError) -> str:
    return f"{path}:{number}: not written by this version of Holdfast: {why}"


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
