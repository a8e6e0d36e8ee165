"""Between the coordinator and the agent that starts and watches its workers."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    ExitStatus,
    Label,
    MachineName,
    Number,
    Pid,
    PidOrNone,
    Seconds,
    Slots,
    Step,
    WorkerName,
)
from holdfast.protocol.messages.what_to_run import WhatToRun
from holdfast.protocol.records import (
    Address,
    AliveRow,
    BeatRow,
    LongestRow,
    MicrobatchLoss,
    OperationTime,
    ReportRow,
    Transfers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAsk:
    """agent -> coordinator: what is to be run? Asked by one that has only a ticket: some of it
    must be known before torch is loaded. Answered with RunTold; then the agent comes anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTold(WhatToRun):
    """coordinator -> agent that has asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """agent -> coordinator, once: ready to start workers."""

    machine: MachineName  # that it speaks for
    slots: Slots  # workers that may run there at one time
    memory_bytes: Number  # of the machine; 0: not known
    devices: list[Label]  # as people call them
    pid: Pid
    fingerprint: dict[Label, Label]  # what can be said before anything is loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBeat:
    """agent -> coordinator, every so often: the machine is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """worker -> its agent -> coordinator, instead of an AgentBeat: heartbeats and reports of steps
    of all workers on the machine. Rows of several of them stand one after the other."""

    alive: list[AliveRow]
    beats: list[BeatRow]
    longest: list[LongestRow]
    reports: list[ReportRow]
    losses: list[MicrobatchLoss]
    operations: list[OperationTime]
    transfers: list[Transfers]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOn:
    """agent -> worker: what it has gathered of it is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewals:
    """coordinator -> agent -> workers whose heartbeats it passes on, to each its own answer: what
    Renewal and StillHere say."""

    number: Number
    for_s: Seconds
    epoch: Number
    next_step: Step  # of this epoch
    heard: Step
    leads: bool  # for sure: else another coordinator may have taken over
    answers: dict[WorkerName, Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """agent -> coordinator: this machine is about to go; let its workers go before."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMachine:
    """operator -> coordinator: let the workers of this machine go, and then its agent."""

    machine: MachineName


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer:
    """coordinator -> operator."""

    refused: str  # why; empty: it is being done


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLinks:
    """coordinator -> agent of a machine that was left out for its links: can they be reached?"""

    addresses: dict[Label, Address]  # of a member on each other machine, by the machine's name


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksTried:
    """agent -> coordinator: the answer, within seconds."""

    unreached: list[Label]  # of these names


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRefused:
    """coordinator -> agent, instead of work: there is no place for it."""

    reason: str


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
class EndWorker(_Process):
    """coordinator -> agent: somebody else has its place; it hangs, or would end by itself."""


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
    AgentAsk
    | RunTold
    | AgentHello
    | AgentBeat
    | Gathered
    | PassedOn
    | Renewals
    | Leaving
    | DrainMachine
    | DrainAnswer
    | AgentRefused
    | TryLinks
    | LinksTried
    | StartWorkers
    | WorkerStarted
    | WorkerNotStarted
    | WorkerExited
    | LookAt
    | EndWorker
    | WorkerRuns
    | ShowStack
)
