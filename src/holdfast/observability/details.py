"""What ``--verbose`` adds to the line of an event: why and how. All of it is in the events too."""

from collections.abc import Iterator

from holdfast.observability import events
from holdfast.observability.lines import seconds_after_fault, stages
from holdfast.observability.text import count, duration, size


def details(event: events.Event) -> Iterator[str]:
    """Any number of lines, which may be long."""
    match event:
        case events.RunStarted():
            yield f"plan: {event.reason}{_cut(event)}"
            yield from [event.limits] if event.limits else []
        case events.CheckpointSaved():
            yield f"{event.path}, written in {duration(event.took_s)}"
        case events.Validated():
            yield f"took {duration(event.took_s)}"
        case events.Recovered():
            yield from _recovered(event)
        case events.IntervalChosen() | events.WorkerMoved():
            yield f"because: {event.reason}"
        case events.MitigationChosen():
            yield f"mitigation of {', '.join(event.subjects)}: {event.reason}"
        case events.Diagnosed():
            yield f"{event.evidence} ({event.confidence:.0%} sure)"
        case events.PlanSwitched():
            yield f"new plan from step {event.step + 1} on, without a stop{_planned(event)}"
            yield f"plan: {event.reason}"
        case events.WorkerStuck():
            yield from event.stack.splitlines()
            yield from [f"stacks of all its threads: {event.path}"] if event.path else []
        case _:
            yield from _of_log(event)


def _cut(event: events.RunStarted) -> str:
    return f" (parallel.cut={list(event.cut)}; set it for another cut)" if event.cut else ""


def _of_log(event: events.Event) -> Iterator[str]:
    match event:
        case events.LogChanged(logging=True):
            whose = f" of worker {event.worker}" if event.worker else ""
            yield f"step {event.step + 1}  log{whose}: {event.reason}"
        case events.ReplayBegan():
            yield f"by {', '.join(event.workers)}; {stages(event.replayed)} together"
        case events.StageRebuilt() if event.operations:
            done = f"{count(event.operations, 'operation')}, {size(event.read_bytes)} of log read"
            yield f"as after step {event.version}: {done}"
        case events.StepTakenBack():
            how = f"undone and repeated ({event.reason})"
            yield f"step {event.step + 1}  early update of worker {event.worker} {how}"
        case events.ConnectionDropped():
            yield f"closed a connection of {event.who}: {event.reason}"


def _recovered(event: events.Recovered) -> Iterator[str]:
    notice_s, plan_s, _ = seconds_after_fault(event)
    redone = f"{count(event.redone, 'operation')} run again, {event.operations} were left"
    timing = f"noticed after {duration(notice_s)}, planned after {duration(plan_s)}"
    yield f"{timing}; {redone}{_planned(event)}"
    yield from [f"plan: {event.reason}"] if event.reason else []


def _planned(event: events.Recovered | events.PlanSwitched) -> str:
    return f"; {event.period_s:.3f} s/step planned" if event.period_s else ""
