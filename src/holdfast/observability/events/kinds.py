"""All kinds of events: those of every topic. A new one is added to the list of its topic."""

from dataclasses import replace
from typing import TypeAlias

from holdfast.observability.events.run import RunEvent, RunStarted
from holdfast.observability.events.slowness import SlownessEvent
from holdfast.observability.events.state import StateEvent
from holdfast.observability.events.workers import TookOver, WorkerEvent

Event: TypeAlias = RunEvent | WorkerEvent | StateEvent | SlownessEvent

SCHEMA = 1
"""Version of the form of events. A field with a default, or a new kind, leaves it as it is: it
changes when a reader of the version before would take something for what it is not."""


def dated(event: Event, unix_s: float) -> Event:
    """What a launch begins with says which form follows, and what time of day it is."""
    if isinstance(event, RunStarted | TookOver) and not event.unix_s:
        return replace(event, unix_s=unix_s, schema=SCHEMA)
    return event
