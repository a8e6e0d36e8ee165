"""Every message, by what it is about.

Knows who sends it to whom, and its fields; one module a topic. Add a message here first.
Does not know what it leads to. Tensors never travel here: they go over ``transport``.
"""

from holdfast.protocol.messages.agent import (
    AgentAsk,
    AgentBeat,
    AgentHello,
    AgentMessage,
    AgentRefused,
    DrainAnswer,
    DrainMachine,
    Leaving,
    LinksTried,
    LookAt,
    RunTold,
    ShowStack,
    StartWorkers,
    TryLinks,
    WorkerExited,
    WorkerNotStarted,
    WorkerRuns,
    WorkerStarted,
)
from holdfast.protocol.messages.bundle import (
    MANIFEST,
    BundleAsk,
    BundleMessage,
    BundlePiece,
    BundleRefused,
)
from holdfast.protocol.messages.liveness import (
    ClockAsk,
    ClockTold,
    Failed,
    FaultReport,
    Finished,
    Heartbeat,
    JobFailed,
    LivenessMessage,
    PeerGone,
    Renewal,
    Stop,
    WorkerWarning,
)
from holdfast.protocol.messages.log import (
    LogBoundaries,
    LogMessage,
    LogState,
    LogVolume,
    Replay,
    Replayed,
    ReplayFailed,
    TidyLogs,
)
from holdfast.protocol.messages.reconfiguring import (
    OFFER_AHEAD,
    Adopt,
    Halt,
    Inventory,
    Offer,
    Offered,
    Proceed,
    ReconfigurationMessage,
    Restore,
    Resumed,
)
from holdfast.protocol.messages.saving import (
    CheckpointPart,
    PartFailed,
    SaveAt,
    SaveMessage,
    SaveOnce,
    Sealed,
    StateHashes,
)
from holdfast.protocol.messages.starting import (
    MICROBATCH_SIZE,
    SAMPLES,
    Assign,
    Copied,
    CopyState,
    Hello,
    JoinGranted,
    JoinRequest,
    LayerCosts,
    MeasureLayers,
    Ready,
    ShareState,
    StartMessage,
)
from holdfast.protocol.messages.steps import (
    Probe,
    Probed,
    StepMessage,
    StepReport,
)

Message = (
    AgentMessage
    | StartMessage
    | LivenessMessage
    | ReconfigurationMessage
    | StepMessage
    | SaveMessage
    | LogMessage
    | BundleMessage
)

__all__ = [
    "MANIFEST",
    "MICROBATCH_SIZE",
    "OFFER_AHEAD",
    "SAMPLES",
    "Adopt",
    "AgentAsk",
    "AgentBeat",
    "AgentHello",
    "AgentRefused",
    "Assign",
    "BundleAsk",
    "BundlePiece",
    "BundleRefused",
    "CheckpointPart",
    "ClockAsk",
    "ClockTold",
    "Copied",
    "CopyState",
    "DrainAnswer",
    "DrainMachine",
    "Failed",
    "FaultReport",
    "Finished",
    "Halt",
    "Heartbeat",
    "Hello",
    "Inventory",
    "JobFailed",
    "JoinGranted",
    "JoinRequest",
    "LayerCosts",
    "Leaving",
    "LinksTried",
    "LogBoundaries",
    "LogState",
    "LogVolume",
    "LookAt",
    "MeasureLayers",
    "Message",
    "Offer",
    "Offered",
    "PartFailed",
    "PeerGone",
    "Probe",
    "Probed",
    "Proceed",
    "Ready",
    "Renewal",
    "Replay",
    "ReplayFailed",
    "Replayed",
    "Restore",
    "Resumed",
    "RunTold",
    "SaveAt",
    "SaveOnce",
    "Sealed",
    "ShareState",
    "ShowStack",
    "StartWorkers",
    "StateHashes",
    "StepReport",
    "Stop",
    "TidyLogs",
    "TryLinks",
    "WorkerExited",
    "WorkerNotStarted",
    "WorkerRuns",
    "WorkerStarted",
    "WorkerWarning",
]
