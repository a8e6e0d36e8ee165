"""Every event of a run, and its form in a file.

Knows fields and JSON lines; ``at_s`` and other times are ``time.monotonic()`` of the coordinator's
machine. Only ``transfers`` are between two clocks.
Does not know who emits or who reads.
"""

from holdfast.observability.event_files import EVENTS_FILE
from holdfast.observability.events.kinds import SCHEMA, Event, dated
from holdfast.observability.events.lines import JsonLines, decode_event, encode_event, read_events
from holdfast.observability.events.run import (
    Interrupted,
    OpRow,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    StoppedEarly,
    TransferRow,
    Validated,
    Warned,
    WorkerReady,
    WorkerStep,
)
from holdfast.observability.events.slowness import (
    Diagnosed,
    MitigationChosen,
    PlanSwitched,
    SlownessOver,
)
from holdfast.observability.events.state import (
    CheckpointFailed,
    CheckpointSaved,
    IntervalChosen,
    LogChanged,
    ReplayBegan,
    StageRebuilt,
    WentBack,
)
from holdfast.observability.events.workers import (
    ConnectionDropped,
    FaultFired,
    JoinFailed,
    JoinUnfinished,
    MachineCame,
    MachineDrained,
    MachineDrains,
    MachineLost,
    NoRoom,
    Recovered,
    TookOver,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReplaced,
    WorkerStuck,
)

__all__ = [
    "EVENTS_FILE",
    "SCHEMA",
    "CheckpointFailed",
    "CheckpointSaved",
    "ConnectionDropped",
    "Diagnosed",
    "Event",
    "FaultFired",
    "Interrupted",
    "IntervalChosen",
    "JoinFailed",
    "JoinUnfinished",
    "JsonLines",
    "LogChanged",
    "MachineCame",
    "MachineDrained",
    "MachineDrains",
    "MachineLost",
    "MitigationChosen",
    "NoRoom",
    "OpRow",
    "PlanSwitched",
    "Recovered",
    "ReplayBegan",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "SlownessOver",
    "StageRebuilt",
    "StepFinished",
    "StepTakenBack",
    "StoppedEarly",
    "TookOver",
    "TransferRow",
    "Validated",
    "Warned",
    "WentBack",
    "WorkerJoined",
    "WorkerLost",
    "WorkerMoved",
    "WorkerReady",
    "WorkerReplaced",
    "WorkerStep",
    "WorkerStuck",
    "dated",
    "decode_event",
    "encode_event",
    "read_events",
]
