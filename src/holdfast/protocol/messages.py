"""Every message between launcher, agent and workers, and nothing else. Add a message here first.

Tensors never travel here: they go from worker to worker over ``transport``.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """agent -> coordinator, once: ready to start workers."""

    token: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """coordinator -> agent."""

    workers: list[str]
    job: str  # path of the job file
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """agent -> coordinator."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """agent -> coordinator, as soon as the process is gone."""

    worker: str
    pid: int
    how: str  # "exit code 1" or "signal SIGKILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """worker -> coordinator, once the job is loaded and the data port is open."""

    token: str
    worker: str
    pid: int
    fingerprint: dict[str, str]  # all that the bits of a result depend on
    num_layers: int
    cut: list[int]  # the job's own wish; empty: none
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLayers:
    """coordinator -> one worker: time the layers, to cut them into equal stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """worker -> coordinator."""

    worker: str
    forward_s: list[float]
    backward_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """coordinator -> worker: what to hold and what to run, every step."""

    epoch: int
    cut: list[int]
    schedule: str  # text form of the whole schedule: routes follow from it
    addresses: dict[str, list[Any]]  # worker -> [host, port]
    checkpoint: str  # directory to load from; empty: start anew
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """worker -> coordinator: the stage is built."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """coordinator -> worker: all are ready, train."""

    run_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """worker -> coordinator after each of its steps. Losses and tokens come from the last stage."""

    worker: str
    step: int
    losses: list[list[float]]  # [micro-batch, loss]
    num_tokens: int
    norm: float
    clipped: bool
    skipped: bool
    taken_back: bool
    operations: list[list[Any]]  # [text, start_s, end_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """worker -> coordinator: its layers of a checkpoint are on disk."""

    worker: str
    step: int
    directory: str
    layers: list[int]
    digests: dict[str, str]  # file -> sha256
    state: dict[str, Any]  # what is not a tensor, e.g. the LR schedule's
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """worker -> coordinator: all steps done."""

    worker: str
    digests: dict[str, str]  # layer -> sha256 of its parameters
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """worker -> coordinator, before it ends by itself."""

    token: str
    worker: str
    lost: str  # the worker whose end made this one fail; empty: the fault is its own
    exit_code: int
    reason: str  # one line
    details: str  # traceback; empty for the user's own mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """coordinator -> worker or agent: end now, in good order."""

    reason: str


Message = (
    AgentHello
    | StartWorkers
    | WorkerStarted
    | WorkerExited
    | Hello
    | MeasureLayers
    | LayerCosts
    | Assign
    | Ready
    | Go
    | StepReport
    | CheckpointPart
    | Finished
    | Failed
    | Stop
)
