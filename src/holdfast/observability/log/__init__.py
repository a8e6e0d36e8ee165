"""A run's events on disk: read at once, by step, or as they come.

Knows files of events and the index beside them, which can be thrown away and made again.
Does not know what the events mean; a reader never makes the writer wait.
"""

from holdfast.observability.log.files import EVENTS_FILE
from holdfast.observability.log.reading import read_events
from holdfast.observability.log.run_log import RunLog, is_written
from holdfast.observability.log.table import StepFlag, StepTable
from holdfast.observability.log.writer import EventWriter

__all__ = [
    "EVENTS_FILE",
    "EventWriter",
    "RunLog",
    "StepFlag",
    "StepTable",
    "is_written",
    "read_events",
]
