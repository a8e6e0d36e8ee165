"""Copies of what is only on the coordinator's machine, for one that stands by: events so far."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import ProtocolError, TransferFailed
from holdfast.files.courier import Courier
from holdfast.files.file_link import PIECE_BYTES, FileLink, FileWords
from holdfast.files.file_service import Answer
from holdfast.names import check_number
from holdfast.observability.events import Event, decode_event, encode_event

EVENTS = "events"  # what is to be done
_AT_ONCE = 2000  # events in one answer
_MOST_BYTES = 256 << 20
_MOST_EVENTS = 2**40


class EventCopies:
    """The coordinator's side. ``kept``: all events, in order; grows while it is asked."""

    def __init__(
        self,
        kept: Sequence[Event],
        others: Answer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``others``: whatever else is asked for. ``clock``: that of the events."""
        self._kept, self._others, self._clock = kept, others, clock

    def answer(self, ask: FileWords, link: FileLink) -> None:
        if ask.get("do") != EVENTS:
            return self._others(ask, link)
        first = check_number(ask.get("from"), "from", 0, _MOST_EVENTS)
        found = self._kept[first : first + _AT_ONCE]
        data = "\n".join([repr(self._clock()), *map(encode_event, found)]).encode()
        link.say({"size": len(data)})
        link.send_pieces(data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        return None


def copied(courier: Courier, first: int) -> list[Event]:
    """Events from number ``first`` on, by this machine's clock. TransferFailed, in one line."""
    found: list[Event] = []
    with courier.link() as link:
        while True:
            asked_s = time.monotonic()
            ask = {"do": EVENTS, "from": first + len(found)}
            text = courier.read(link, ask, _MOST_BYTES).decode("utf-8", "replace")
            more = _by_our_clock(text.split("\n"), asked_s)
            found += more
            if len(more) < _AT_ONCE:
                return found


def _by_our_clock(lines: Sequence[str], asked_s: float) -> list[Event]:
    """Clocks of two machines have nothing in common but how fast they go."""
    clock, *rest = lines
    try:
        ahead_s = asked_s - float(clock)
        events: Iterable[Event] = map(decode_event, rest)
        return [replace(event, at_s=event.at_s + ahead_s) for event in events]
    except (ValueError, ProtocolError) as why:
        raise TransferFailed(f"no events of this version of Holdfast came ({why})") from why
