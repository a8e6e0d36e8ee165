"""Lines for the terminal on the run itself: layout, room, and what a validation brought."""

from holdfast.observability.events import RunStarted, StoppedEarly, Validated
from holdfast.observability.text import count


def validation_line(event: Validated | StoppedEarly) -> str:
    if isinstance(event, StoppedEarly):
        return f"step {event.step}  stopped early: {event.reason}"
    metrics = "".join(f", {name} {value:.4f}" for name, value in event.metrics.items())
    best = " (best so far)" if event.is_best else ""
    return f"step {event.step}  validation loss {event.loss:.4f}{metrics}{best}"


def room_line(run: RunStarted) -> str | None:
    if not run.in_flight:
        return None
    return f"at most {count(run.in_flight, 'micro-batch', 'es')} in flight a worker: device memory"


def layout(run: RunStarted) -> str:
    return (
        f"{count(run.pipelines, 'pipeline')} x {count(run.stages, 'stage')}, "
        f"{count(run.microbatches, 'micro-batch', 'es')} a step, "
        f"{count(run.steps, 'step')}, {run.schedule}"
    )
