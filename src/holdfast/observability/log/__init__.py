"""A run's events on disk: read at once, by step, or as they come.

Knows files of events and the index beside them, which can be thrown away and made again.
Does not know what the events mean; a reader never makes the writer wait.
"""

from holdfast.observability.log.run_log import RunLog
from holdfast.observability.log.table import StepFlag, StepTable

__all__ = ["RunLog", "StepFlag", "StepTable"]
