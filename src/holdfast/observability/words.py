"""What happened, as one line for the terminal, which counts steps from 1. Knows no progress."""

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
    MitigationChosen,
    PlanSwitched,
    Recovered,
    ReplayBegan,
    RunStarted,
    SlownessOver,
    StageRebuilt,
    StepTakenBack,
    Warned,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReplaced,
    WorkerStuck,
)

INTERRUPTED = "interrupted: ends the step and saves it; once more: ends at once"


def told(event: Event) -> str | None:
    """The line of an event that is told as it happens; none for all others."""
    match event:
        case CheckpointSaved() | CheckpointFailed():
            return _told_of_checkpoint(event)
        case Recovered():
            return recovered(event)
        case WentBack():
            return _went_back(event)
        case IntervalChosen():
            every = count(event.every, "step")
            return f"a checkpoint every {every} from step {event.first} on: {event.reason}"
        case ReplayBegan():
            return _replay_began(event)
        case StageRebuilt():
            return _rebuilt(event)
        case LogChanged():
            who = f"log of worker {event.worker}" if event.worker else "log"
            what = "" if event.logging else " stopped"
            return f"{who}{what} in step {event.step + 1}: {event.reason}"
        case Diagnosed() | SlownessOver() | MitigationChosen() | PlanSwitched():
            return _told_of_slowness(event)
        case Interrupted():
            return INTERRUPTED
        case _:
            return _told_of_worker(event)


def _told_of_checkpoint(event: CheckpointSaved | CheckpointFailed) -> str:
    if isinstance(event, CheckpointFailed):
        return unsaved(event)
    return f"checkpoint of step {event.step} saved to {event.path}"


def _told_of_slowness(event: Diagnosed | SlownessOver | MitigationChosen | PlanSwitched) -> str:
    match event:
        case PlanSwitched():
            planned = f", {event.period_s:.3f} s/step planned" if event.period_s else ""
            return (
                f"new plan ({event.cause}) from step {event.step + 1} on{planned}; {event.reason}"
            )
        case Diagnosed():
            more = f"+{event.excess_s * 1e3:.1f} ms" if event.excess_s else f"x{event.factor:.2f}"
            return (
                f"{event.cause}: {event.subject} {more} since step {event.since + 1} "
                f"({event.confidence:.0%} sure): {event.evidence}"
            )
        case SlownessOver():
            return f"over since step {event.since + 1}: {event.cause} of {event.subject}"
        case MitigationChosen():
            whom = f" ({', '.join(event.subjects)})" if event.subjects else ""
            return f"mitigation{whom}: {event.reason}"


def _told_of_worker(event: Event) -> str | None:
    match event:
        case FaultFired():
            return f"fault fired in step {event.step + 1}: {event.fault}"
        case StepTakenBack():
            return f"worker {event.worker} took back step {event.step + 1}: {event.reason}"
        case WorkerLost():
            return f"worker {event.worker} lost in step {event.step + 1}: {event.cause}"
        case WorkerStuck():
            return _stuck(event)
        case WorkerMoved():
            return (
                f"worker {event.worker} moved from stage {event.from_stage} to stage "
                f"{event.to_stage} in step {event.step + 1}: {event.reason}"
            )
        case Warned():
            return f"warning: {event.reason}"
        case _:
            return _told_of_joining(event)


def _told_of_joining(event: Event) -> str | None:
    match event:
        case WorkerJoined():
            return _joined(event)
        case JoinFailed():
            who = f"worker {event.worker}" if event.worker else "a worker"
            return f"{who} could not join: {event.reason}"
        case JoinUnfinished():
            what = event.fault or f"the join of worker {event.worker}"
            return f"{what} was not complete at the end: still {event.state}"
        case WorkerReplaced():
            tries = f"{event.number} of {event.limit} in 100 steps"
            return f"worker {event.worker} is started again ({tries}); it joins the others"
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
    where = f": {event.where}" if event.where else ""
    what = OPERATIONS.get(event.operation, event.operation)
    return (
        f"worker {event.worker} is stuck in step {event.step + 1}, {what} for "
        f"{event.seconds:.1f} s{usual}{where}"
    )


def recovered(event: Recovered) -> str:
    """How long after the fault each part was done, and how the run goes on."""
    notice_s, plan_s, resumed_s = seconds_after_fault(event)
    what = "recovered" if event.num_lost else f"change ({event.cause}) complete"
    planned = f", {event.period_s:.3f} s/step planned" if event.period_s else ""
    reason = f"; {event.reason}" if event.reason else ""
    again = f"{count(event.redone, 'operation')} done again"
    if event.thrown_away:
        again = f"{thrown_away(event.thrown_away)}"
    return (
        f"{what} in {resumed_s:.3f} s (notice {notice_s:.3f}, plan {plan_s:.3f}): {again}, "
        f"{count(event.members, 'worker')}{planned}{reason}"
    )


def thrown_away(num_steps: int) -> str:
    """What going back costs."""
    verb = "is" if num_steps == 1 else "are"
    return f"{count(num_steps, 'finished step')} {verb} trained again"


def seconds_after_fault(event: Recovered) -> tuple[float, float, float]:
    """Until the notice, the plan and the first operation of the last member, in whole µs."""
    notice_s, plan_s, resumed_s = (
        round(at_s - event.fault_s, 6) for at_s in (event.notice_s, event.plan_s, event.resumed_s)
    )
    return notice_s, plan_s, resumed_s


def _joined(event: WorkerJoined) -> str:
    copied = f"{size(event.copied_bytes)} in {event.took_s:.1f} s"
    copied = "its state was rebuilt" if not event.took_s else copied
    place = f"stage {event.stage} in step {event.step + 1}"
    return f"worker {event.worker} joined at {place} ({copied})"


def unsaved(event: CheckpointFailed) -> str:
    """Stays in sight until a checkpoint is whole."""
    who = f"worker {event.worker}: " if event.worker else ""
    newest = f"the last is of step {event.newest}" if event.newest >= 0 else "there is none yet"
    then = f"worker {event.next_writer} tries next" if event.next_writer else newest
    return f"NO CHECKPOINT of step {event.step} ({who}{event.reason}); {then}"


def _went_back(event: WentBack) -> str:
    back = f"the checkpoint of step {event.to_step}, {event.checkpoint}"
    memory = f"their copies in memory of step {event.to_step}"
    first = "the initial parameters (there is no whole checkpoint)"
    where = back if event.checkpoint else memory if event.to_step else first
    lost = f"; {thrown_away(event.thrown_away)}" if event.thrown_away else ""
    return f"all go back to {where}: {event.reason}{lost}"


def _replay_began(event: ReplayBegan) -> str:
    others = tuple(stage for stage in event.replayed if stage not in event.stages)
    more = f", together with {_stages(others)}" if others else ""
    who = count(len(event.workers), "worker")
    verb = "replays" if len(event.workers) == 1 else "replay"
    what = f"{who} {verb} steps {event.from_step + 1} to {event.to_step} from the log{more}"
    return f"{_no_holder(event.stages)}: {what}"


def _rebuilt(event: StageRebuilt) -> str:
    if not event.operations:
        newest = f"the checkpoint of step {event.version}" if event.version else "the beginning"
        return f"{_no_holder(event.stages)}: {newest} is the newest state"
    read = f"{size(event.read_bytes)} of log read"
    done = f"{count(event.operations, 'operation')} in {event.took_s:.3f} s"
    return f"{_stages(event.stages)} rebuilt as after step {event.version}: {done}, {read}"


def _no_holder(numbers: tuple[int, ...]) -> str:
    return f"{_stages(numbers)} {'has' if len(numbers) == 1 else 'have'} no holder left"


def _stages(numbers: tuple[int, ...]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def layout(run: RunStarted) -> str:
    return (
        f"{count(run.pipelines, 'pipeline')} x {count(run.stages, 'stage')}, "
        f"{count(run.microbatches, 'micro-batch', 'es')} a step, "
        f"{count(run.steps, 'step')}, {run.schedule}"
    )


def how_to_join(run: RunStarted) -> str:
    return f"join with: holdfast worker --join {run.address} {run.join_with}".rstrip()


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def size(num_bytes: int) -> str:
    """In the largest decimal unit that leaves a number of 1 or more."""
    number, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{num_bytes} B" if unit == "B" else f"{number:.1f} {unit}"
