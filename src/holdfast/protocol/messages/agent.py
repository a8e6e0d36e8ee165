"""Between the coordinator and the agent that starts and watches its workers."""

from dataclasses import dataclass

from holdfast.protocol.fields import ExitStatus, Pid, PidOrNone, WorkerName
from holdfast.protocol.messages.what_to_run import WhatToRun


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """agent -> coordinator, once: ready to start workers."""

    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers(WhatToRun):
    """coordinator -> agent."""

    workers: list[WorkerName]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    worker: WorkerName
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(_Process):
    """agent -> coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotStarted:
    """agent -> coordinator: it was tried for some seconds."""

    worker: WorkerName
    reason: str  # one line


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited(_Process):
    """agent -> coordinator, as soon as the process is gone."""

    how: str  # in words, for people: "exit code 1" or "signal SIGKILL"
    code: ExitStatus = 0  # below 0: the number of the signal that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAt:
    """coordinator -> agent: a worker is silent; look at its process."""

    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRuns(_Process):
    """agent -> coordinator, after a LookAt: it runs. Of one that is stopped nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStack:
    """coordinator -> agent, or a worker that it has not started: write down where its threads are.

    A worker does so aside.
    """

    pid: PidOrNone  # 0: your own


AgentMessage = (
    AgentHello
    | StartWorkers
    | WorkerStarted
    | WorkerNotStarted
    | WorkerExited
    | LookAt
    | WorkerRuns
    | ShowStack
)
