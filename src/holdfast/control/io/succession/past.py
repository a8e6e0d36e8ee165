"""What the events of a run tell whoever takes it over: what came before, how far it had come."""

import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.config import RunConfig
from holdfast.control.device_room import limited_by_device
from holdfast.control.takeover.snapshot import RunSnapshot
from holdfast.errors import ConfigError
from holdfast.observability import events, log


def past_events(run_dir: Path) -> list[events.Event]:
    """As a summary wants them; nothing if they cannot be read, or are on another machine."""
    try:
        found = log.read_events(run_dir / log.EVENTS_FILE)
    except ConfigError:
        return []
    return [event for event in found if not isinstance(event, events.WorkerStep)]


def steps_finished(past: Sequence[events.Event]) -> int:
    """All steps before this one."""
    reached = 0
    for event in past:
        if isinstance(event, events.StepFinished):
            reached = event.step + 1
        elif isinstance(event, events.WentBack):
            reached = event.to_step
    return reached


def started(config: RunConfig, snapshot: RunSnapshot, next_step: int) -> events.RunStarted:
    """For who has none of the events before, and whoever reads those that follow."""
    return events.RunStarted(
        at_s=time.monotonic(),
        pipelines=config.parallel.pipelines,
        stages=config.parallel.stages,
        microbatches=config.parallel.microbatches,
        first_step=next_step,
        steps=config.train.steps,
        schedule=config.schedule.file or config.schedule.name,
        reason=snapshot.cut.reason,
        cut=tuple(snapshot.cut.layers),
        in_flight=limited_by_device(snapshot.cut.in_flight, config),
    )
