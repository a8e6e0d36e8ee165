"""What happened, as one short line for the terminal, which counts steps from 1.

Evidence, plans and timings are in ``details.py``. Knows no progress: what a line needs of it is
given as a ``Standing``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.observability.events import (
    CheckpointFailed,
    CheckpointSaved,
    Diagnosed,
    Event,
    FaultFired,
    Interrupted,
    IntervalChosen,
    JoinFailed,
    JoinUnfinished,
    LogChanged,
    MachineCame,
    MachineDrained,
    MachineDrains,
    MachineLost,
    MitigationChosen,
    NoRoom,
    PlanSwitched,
    Recovered,
    ReplayBegan,
    RunStarted,
    SlownessOver,
    StageRebuilt,
    StoppedEarly,
    TookOver,
    Validated,
    Warned,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReplaced,
    WorkerStuck,
)
from holdfast.observability.run_lines import room_line, validation_line
from holdfast.observability.text import count, duration, listed, size

INTERRUPTED = "interrupted: finishing the step and saving it; a second signal stops at once"
NAMES = "worker P.S runs stage S of pipeline P; every pipeline is a replica of the model"


class Standing(NamedTuple):
    """Of the run at the time of an event."""

    num_workers: int = 0  # that the layout has; 0: not known
    stage: int = -1  # of the worker that the event is about; -1: not known
    replicas: tuple[str, ...] = ()  # others that hold this stage


UNKNOWN = Standing()


def line(event: Event, standing: Standing = UNKNOWN) -> str | None:
    """The line of an event that is shown as it happens; none for all others."""
    match event:
        case CheckpointSaved() | CheckpointFailed() | IntervalChosen():
            return _of_checkpoint(event)
        case Recovered():
            return recovered(event, standing)
        case WentBack():
            return _rolled_back(event)
        case ReplayBegan() | StageRebuilt() | LogChanged():
            return _of_log(event)
        case Diagnosed() | SlownessOver() | MitigationChosen() | PlanSwitched():
            return _of_slowness(event)
        case Validated() | StoppedEarly():
            return validation_line(event)
        case RunStarted():
            return room_line(event)
        case Interrupted():
            return INTERRUPTED
        case Warned():
            return f"warning: {event.reason}"
        case _:
            return _of_worker(event, standing)


# --- checkpoints ---


def _of_checkpoint(event: CheckpointSaved | CheckpointFailed | IntervalChosen) -> str:
    match event:
        case CheckpointFailed():
            return unsaved(event)
        case CheckpointSaved():
            return f"step {event.step}  checkpoint saved"
        case IntervalChosen():
            every = count(event.every, "step")
            return f"step {event.first}  checkpoints every {every} from here on"


def unsaved(event: CheckpointFailed) -> str:
    """Stays in sight until a checkpoint is whole."""
    who = f"worker {event.worker}: " if event.worker else ""
    newest = f"the last is of step {event.newest}" if event.newest >= 0 else "there is none yet"
    then = f"worker {event.next_writer} tries next" if event.next_writer else newest
    return f"NO CHECKPOINT of step {event.step} ({who}{event.reason}); {then}"


# --- losses and what follows ---

_CAUSES = {  # in other words
    "death": "loss",
    "link": "lost connection",
    "stuck": "no progress",
    "coordinator": "new coordinator",
}


def recovered(event: Recovered, standing: Standing = UNKNOWN) -> str | None:
    """How long it took until all were at work again, and what it has cost."""
    took = duration(seconds_after_fault(event)[2])
    num_all = standing.num_workers
    workers = f"{event.members} of {num_all} workers" if num_all else count(event.members, "worker")
    step = f"step {event.step + 1}  "
    if not event.num_lost:
        causes = event.cause.split(" and ")
        if causes == ["interrupt"]:
            return None  # it was said when it came
        why = ", ".join(_CAUSES.get(cause, cause) for cause in causes)
        return f"{step}resumed after {took} ({why}); {workers}"
    if event.thrown_away:
        return f"{step}recovered in {took}; {to_train_again(event.thrown_away)}; {workers}"
    if event.members < num_all:
        return f"{step}recovered in {took}: micro-batches re-routed over {workers}; 0 steps lost"
    return f"{step}recovered in {took}; 0 steps lost; {workers}"


def to_train_again(num_steps: int) -> str:
    """What a rollback costs."""
    return f"{count(num_steps, 'step')} to train again"


def seconds_after_fault(event: Recovered) -> tuple[float, float, float]:
    """Until the notice, the plan and the first operation of the last member, in whole µs."""
    notice_s, plan_s, resumed_s = (
        round(at_s - event.fault_s, 6) for at_s in (event.notice_s, event.plan_s, event.resumed_s)
    )
    return notice_s, plan_s, resumed_s


def _rolled_back(event: WentBack) -> str:
    memory = f"the copies in memory of step {event.to_step}"
    first = "the initial parameters (no checkpoint yet)"
    back = f"the checkpoint of step {event.to_step}"
    where = back if event.checkpoint else memory if event.to_step else first
    lost = f"; {to_train_again(event.thrown_away)}" if event.thrown_away else ""
    step = event.to_step + event.thrown_away + 1
    return f"step {step}  rolled back to {where}{lost}\n{event.reason}"


def _of_log(event: ReplayBegan | StageRebuilt | LogChanged) -> str | None:
    match event:
        case LogChanged(logging=False):
            whose = f" of worker {event.worker}" if event.worker else ""
            return f"step {event.step + 1}  log{whose} stopped: {event.reason}"
        case LogChanged():
            return None
        case ReplayBegan():
            replay = "replays" if len(event.workers) == 1 else "replay"
            who = f"{count(len(event.workers), 'worker')} {replay}"
            steps = f"steps {event.from_step + 1} to {event.to_step} from the log"
            return f"step {event.to_step + 1}  {stages(event.stages)} lost: {who} {steps}"
        case StageRebuilt():
            took = duration(event.took_s)
            state = f"the checkpoint of step {event.version}" if event.version else "the start"
            how = f"rebuilt from the log in {took}" if event.operations else f"taken from {state}"
            return f"step {event.version + 1}  {stages(event.stages)} {how}"


def stages(numbers: Sequence[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


# --- slowness ---


def _of_slowness(event: Diagnosed | SlownessOver | MitigationChosen | PlanSwitched) -> str | None:
    match event:
        case Diagnosed():
            hint = f" ({event.hint})" if event.hint else ""
            return f"step {event.step + 1}  {_slow(event)}{hint}"
        case SlownessOver():
            since = f"since step {event.since + 1}"
            return f"step {event.step + 1}  {_subject(event)} is at normal speed again {since}"
        case MitigationChosen():
            return _mitigation(event)
        case PlanSwitched(cause="better plan"):
            return f"step {event.step + 1}  better plan in use, without a stop"
        case PlanSwitched():
            return None  # what it is for was said when it was chosen


def _slow(event: Diagnosed) -> str:
    times = f"{event.factor:.1f}x"
    since = f"since step {event.since + 1}" if event.since > 0 else "from the start"
    match event.cause:
        case "slow link":
            return f"slow link {event.subject}: +{event.excess_s * 1e3:.1f} ms a transfer {since}"
        case "slow machine":
            return f"slow machine {event.subject}: its workers take {times} as long {since}"
        case "imbalance of the model":
            return f"uneven stages: {event.subject} takes {times} as long as the others"
        case "imbalance of the data":
            return f"uneven micro-batches: the longest take {times} the median"
    return f"straggler: worker {event.subject} takes {times} as long {since}"


def _subject(event: SlownessOver) -> str:
    kind = {"slow link": "link", "slow machine": "machine"}.get(event.cause, "worker")
    return f"{kind} {event.subject}"


_ACTIONS = {
    "re-plan": "re-planned around",
    "change places": "workers change stages because of",
    "drop": "a worker is left out because of",
}


def _mitigation(event: MitigationChosen) -> str | None:
    """No action is no news, unless nobody will ever look again."""
    step = f"step {event.step + 1}  "
    if event.action == "wait":
        has_stopped = not event.subjects and not event.period_s
        return f"{step}{event.reason}" if has_stopped else None
    subjects = listed(event.subjects)
    what = f"{_ACTIONS.get(event.action, event.action)} {subjects}"
    if event.action == "go back":
        what = f"back to the plan before {subjects} was slow"
    if event.only_observed:
        what = f"not done (mitigation.mode=observe): {event.action} for {subjects}"
    return f"{step}{what}: {event.period_s:.3g} -> {event.new_period_s:.3g} s/step planned"


# --- workers ---


def _of_worker(event: Event, standing: Standing) -> str | None:
    match event:
        case FaultFired():
            return f"step {event.step + 1}  injected fault: {event.fault}"
        case WorkerLost():
            return f"step {event.step + 1}  worker {event.worker} lost ({event.cause})" + _left(
                standing
            )
        case WorkerStuck():
            return _stuck(event)
        case MachineCame() | MachineLost() | MachineDrains() | MachineDrained() | NoRoom():
            return _of_machine(event)
        case TookOver():
            kept = count(len(event.workers), "worker")
            return f"step {event.step + 1}  new coordinator: {kept} kept training state"
        case WorkerMoved():
            way = f"from stage {event.from_stage} to stage {event.to_stage}"
            return f"step {event.step + 1}  worker {event.worker} moved {way}"
        case _:
            return _of_joining(event)


def _of_machine(
    event: MachineCame | MachineLost | MachineDrains | MachineDrained | NoRoom,
) -> str:
    match event:
        case MachineCame():
            here = f"{event.num_here} of {count(event.num_wanted, 'machine')}"
            has = [count(event.slots, "slot"), *_has(event)]
            return f"machine {event.machine} is here with {', '.join(has)} ({here})"
        case MachineLost():
            workers = listed(event.workers) if event.workers else "no workers"
            return f"machine {event.machine} lost with {workers} ({event.cause})"
        case MachineDrains():
            workers = listed(event.workers) if event.workers else "no workers"
            return f"machine {event.machine} is to leave with {workers} ({event.reason})"
        case MachineDrained():
            return f"machine {event.machine} has left after {event.took_s:.1f} s; nothing was lost"
        case NoRoom():
            here = f"here: {event.machines}"
            return f"worker {event.worker} waits for a machine with a free slot ({here})"


def _has(event: MachineCame) -> list[str]:
    """Its memory, and devices besides the processor."""
    memory = [size(event.memory_bytes)] if event.memory_bytes else []
    kinds = Counter(device for device in event.devices if device != "cpu")
    return memory + [f"{number} x {kind}" for kind, number in kinds.items()]


def _left(standing: Standing) -> str:
    """Who else holds the stage of a lost worker."""
    if standing.stage < 0:
        return ""
    if not standing.replicas:
        return f"; no other worker holds stage {standing.stage}"
    return f"; stage {standing.stage} is also on {listed(standing.replicas)}"


def _of_joining(event: Event) -> str | None:
    match event:
        case WorkerJoined():
            copied = f"copied {size(event.copied_bytes)} in {event.took_s:.1f} s"
            copied = "its state was rebuilt" if not event.took_s else copied
            where = f"at stage {event.stage} ({copied})"
            return f"step {event.step + 1}  worker {event.worker} joined {where}"
        case JoinFailed():
            who = f"worker {event.worker}" if event.worker else "a worker"
            return f"{who} could not join: {event.reason}"
        case JoinUnfinished():
            what = event.fault or f"the join of worker {event.worker}"
            return f"{what} was not complete at the end: still {event.state}"
        case WorkerReplaced():
            tries = f"try {event.number} of {event.limit}"
            return f"restarting worker {event.worker} ({tries}); it joins when it is ready"
        case _:
            return None


OPERATIONS = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "BW": "backward",
    "load": "loading data",
    "optimizer": "optimizer step",
    "mute": "code that lets no heartbeat through",
}


def _stuck(event: WorkerStuck) -> str:
    usual = f" (usually {event.usual_s:.2g} s)" if event.usual_s else ""
    where = f"\nat {event.where}" if event.where else ""
    what = OPERATIONS.get(event.operation, event.operation)
    busy = f"{what} for {event.seconds:.1f} s{usual}"
    return f"step {event.step + 1}  worker {event.worker} is stuck: {busy}{where}"
