"""All kinds of events: those of every topic. A new one is added to the list of its topic."""

from typing import TypeAlias

from holdfast.observability.events.run import RunEvent
from holdfast.observability.events.slowness import SlownessEvent
from holdfast.observability.events.state import StateEvent
from holdfast.observability.events.workers import WorkerEvent

Event: TypeAlias = RunEvent | WorkerEvent | StateEvent | SlownessEvent
