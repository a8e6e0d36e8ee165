"""PyTorch training whose result does not depend on who ran what.

``import holdfast as hf`` is cheap: what is asked for is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    HoldfastError,
    JobError,
    MetricError,
    RunInterrupted,
)

__version__ = "0.2.0"

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "DataError",
    "Fault",
    "HoldfastError",
    "Job",
    "JobError",
    "LiveRun",
    "MetricError",
    "Plan",
    "Result",
    "RunInterrupted",
    "RunRecord",
    "__version__",
    "callbacks",
    "diagnose",
    "errors",
    "events",
    "export",
    "open_run",
    "plan",
    "real_tokens",
    "resume",
    "start",
    "testing",
    "train",
]

if TYPE_CHECKING:  # the same names, for those who only read them
    from holdfast import callbacks, testing
    from holdfast.adaptors.tokens import real_tokens
    from holdfast.api.diagnosing import diagnose
    from holdfast.api.live_run import LiveRun
    from holdfast.api.planning import plan
    from holdfast.api.record import Result, RunRecord, open_run
    from holdfast.api.training import resume, start, train
    from holdfast.config import RunConfig as Config
    from holdfast.faults.fault import Fault
    from holdfast.job import Job
    from holdfast.observability import events
    from holdfast.planner.plan import Plan
    from holdfast.weights.exporting import export
else:
    _PLACES = {  # name -> module, and the name it has there; none: the module itself
        "Config": ("config", "RunConfig"),
        "Fault": ("faults.fault", "Fault"),
        "Job": ("job", "Job"),
        "LiveRun": ("api.live_run", "LiveRun"),
        "Plan": ("planner.plan", "Plan"),
        "Result": ("api.record", "Result"),
        "RunRecord": ("api.record", "RunRecord"),
        "callbacks": ("callbacks", ""),
        "diagnose": ("api.diagnosing", "diagnose"),
        "events": ("observability.events", ""),
        "export": ("weights.exporting", "export"),
        "open_run": ("api.record", "open_run"),
        "plan": ("api.planning", "plan"),
        "real_tokens": ("adaptors.tokens", "real_tokens"),
        "resume": ("api.training", "resume"),
        "start": ("api.training", "start"),
        "testing": ("testing", ""),
        "train": ("api.training", "train"),
    }

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        module, there = _PLACES[name]
        found = import_module(f"holdfast.{module}")
        value = getattr(found, there) if there else found
        globals()[name] = value  # the next time it is simply there
        return value

    def __dir__():
        return sorted(__all__)
