"""Whether there is a place for whoever has proven who it is, and what it may say then. Pure."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from holdfast.auth.handshake import (
    AGENT,
    COORDINATOR,
    JOINER,
    OPERATOR,
    WORKER_ROLE,
    Identity,
)
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.messages.what_to_run import WhatToRun

# All others are the coordinator's own: nobody may say them to it.
MAY_SAY: dict[str, tuple[type[messages.Message], ...]] = {
    AGENT: (
        messages.AgentAsk,
        messages.AgentHello,
        messages.AgentBeat,
        messages.Gathered,
        messages.Leaving,
        messages.LinksTried,
        messages.WorkerStarted,
        messages.WorkerNotStarted,
        messages.WorkerExited,
        messages.WorkerRuns,
        messages.BundleAsk,
    ),
    JOINER: (messages.JoinRequest, messages.BundleAsk),
    OPERATOR: (messages.DrainMachine,),
    WORKER_ROLE: (
        messages.Hello,
        messages.Reattach,
        messages.LayerCosts,
        messages.LogVolume,
        messages.LogState,
        messages.Replayed,
        messages.ReplayFailed,
        messages.Ready,
        messages.Heartbeat,
        messages.ClockTold,
        messages.PeerGone,
        messages.Inventory,
        messages.Offered,
        messages.Resumed,
        messages.Copied,
        messages.FaultReport,
        messages.StepReport,
        messages.Scores,
        messages.Probed,
        messages.CheckpointPart,
        messages.PartFailed,
        messages.StateHashes,
        messages.Finished,
        messages.JobFailed,
        messages.WorkerWarning,
        messages.Failed,
    ),
}
_BEFORE_HELLO = (messages.Hello, messages.Reattach, messages.Failed)


def refusal(
    peer: Identity,
    generation: int,
    is_free: Callable[[str], bool],
    *,
    wants_agent: bool,
    launch: int = 0,
) -> str:
    """Why there is no place for it; empty: there is. Whoever has only a ticket knows no launch.

    ``launch``: the first of the coordinators that have taken over from each other; 0: none has.
    """
    may_not_know = peer.role in (JOINER, AGENT, OPERATOR)
    known = peer.generation or (generation if may_not_know else 0)
    if not (launch or generation) <= known <= generation:
        return f"it is of launch {peer.generation} of this run, which is at launch {generation}"
    if peer.role == AGENT and not wants_agent:
        return "nobody waits for an agent"
    may_return = peer.generation < generation  # it has to say what it was
    if peer.role == WORKER_ROLE and not may_return and not is_free(peer.name):
        return "there is no place for you here"
    return "the coordinator is here" if peer.role == COORDINATOR else ""


def granted(worker: WorkerId, order: messages.StartWorkers) -> messages.JoinGranted:
    """It may join: under which name, and what it has to load."""
    return messages.JoinGranted(worker=str(worker), **_what(order))


def join_answer(grant: Callable[[], WorkerId], order: messages.StartWorkers) -> messages.Message:
    """To whoever wants to join."""
    try:
        return granted(grant(), order)
    except ConfigError as why:
        return messages.Stop(reason=str(why))


def sent_away(peer: Identity, generation: int, why: str) -> messages.Message:
    """An agent of an earlier launch may come as a new one."""
    is_old = peer.role == AGENT and peer.generation not in (0, generation)
    return messages.Begone(reason=why) if is_old else messages.Stop(reason=why)


def told(order: messages.StartWorkers) -> messages.RunTold:
    """To an agent that has only a ticket."""
    return messages.RunTold(**_what(order))


def _what(order: messages.StartWorkers) -> dict[str, Any]:
    return {each.name: getattr(order, each.name) for each in fields(WhatToRun)}


def check_right(peer: Identity, message: messages.Message, *, has_said_hello: bool) -> None:
    """ProtocolError: it may not say this."""
    kind = type(message).__name__
    if not isinstance(message, MAY_SAY.get(peer.role, ())):
        raise ProtocolError(f"{peer}: sent {kind}, which is not for {peer.role}s to say")
    if isinstance(message, messages.BundleAsk):
        return  # it speaks of nobody
    if peer.role in (AGENT, OPERATOR):
        return  # of whom it may speak is known only to who has heard it before
    if getattr(message, "worker", None) != peer.name:
        raise ProtocolError(
            f"{peer}: sent {kind} in the name of {getattr(message, 'worker', '')!r}"
        )
    if peer.role == WORKER_ROLE and isinstance(message, messages.Hello) == has_said_hello:
        what = "a second hello" if has_said_hello else f"{kind} before its hello"
        if has_said_hello or not isinstance(message, _BEFORE_HELLO):
            raise ProtocolError(f"{peer}: sent {what}")
