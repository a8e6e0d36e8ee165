"""Events from lines: which are torn, which are of somebody else, and how that is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.observability.events import Event, decode_event
from holdfast.observability.log.files import EventFile
from holdfast.observability.log.tail import EventLine, Tail

_BEGINNING = b'{"event": '


def event_of(line: bytes) -> Event | None:
    """None: it is torn: the writer was killed, or the disk was full. ValueError: it is no event."""
    try:
        return decode_event(line.decode())
    except json.JSONDecodeError:
        if line.startswith(_BEGINNING) or _BEGINNING.startswith(line):
            return None
        raise


def read_events(path: Path) -> list[Event]:
    """The events of a file and of older ones beside it, of a run that has ended or still writes."""
    tail = Tail(path)
    events = []
    try:
        with told(tail):
            for line in every_line(tail):
                if (event := told_event(tail, line)) is not None:
                    events.append(event)
    finally:
        tail.close()
    return events


def every_line(tail: Tail) -> Iterator[EventLine]:
    """With one at the end that is whole, but not ended."""
    yield from tail.lines()
    if tail.rest.text:
        yield tail.rest


@contextmanager
def told(source: Tail | Path) -> Iterator[None]:
    """What is wrong with the files, in one line."""
    try:
        yield
    except OSError as why:
        path = source.path if isinstance(source, Tail) else source
        raise ConfigError(f"cannot read events from {path}: {why}") from why


def told_event(tail: Tail, line: EventLine) -> Event | None:
    """As :func:`event_of`, but ConfigError names the line."""
    try:
        return event_of(line.text)
    except UnicodeDecodeError as why:
        raise ConfigError(f"cannot read events from {tail.path}: {why}") from why
    except ValueError as why:
        number = _line_number(EventFile(line.after.number, tail.path), line.after.end)
        where = f"{tail.path}:{number}" if number else str(tail.path)
        raise ConfigError(f"{where}: not written by this version of Holdfast: {why}") from why


def _line_number(file: EventFile, end: int) -> int:
    """Of the line that ends there; 0: it cannot be told."""
    if file.is_compressed:
        return 0
    try:
        with file.path.open("rb") as opened:
            return opened.read(end - 1).count(b"\n") + 1
    except OSError:
        return 0
