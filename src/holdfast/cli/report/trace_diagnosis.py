"""What ``holdfast diagnose`` prints of a recorded trace: tables and sentences, or JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.api.diagnosing import TraceOutcome
from holdfast.detection.diagnosis import Cause
from holdfast.detection.trace.causes import Finding
from holdfast.detection.trace.trace import Trace

_MOST_NAMED = 8
_MUCH_PAUSE = 1.1
_SHOWN = 1.005  # kinds of operations below it are left out


def as_json(outcome: TraceOutcome) -> dict[str, Any]:
    trace, numbers = outcome.trace, outcome.numbers
    return {
        "source": outcome.source,
        "pipelines": trace.layout.pipelines,
        "stages": trace.layout.stages,
        "steps": list(trace.steps),
        "operations": trace.size,
        "recorded_s": numbers.recorded_s,
        "replayed_s": numbers.replayed_s,
        "ideal_s": numbers.ideal_s,
        "slowdown": numbers.slowdown,
        "without_causes_s": outcome.found.without_s,
        "causes": [_finding_json(each) for each in outcome.found.named],
        "slowdown_by_step": dict(numbers.by_step),
        "slowdown_by_stage": dict(numbers.by_stage),
        "slowdown_by_worker": {
            str(trace.worker_id(worker)): value for worker, value in numbers.by_worker.items()
        },
        "slowdown_by_operation": dict(numbers.by_kind),
    }


def _finding_json(found: Finding) -> dict[str, Any]:
    return {**asdict(found), "workers": [str(worker) for worker in found.workers]}


def report(outcome: TraceOutcome) -> Iterator[str]:
    trace, numbers, found = outcome.trace, outcome.numbers, outcome.found
    yield (
        f"{outcome.source}: {trace.layout.pipelines} pipelines x {trace.layout.stages} stages, "
        f"{_steps(trace)}, {trace.size} operations"
    )
    yield (
        f"a step took {numbers.recorded_s:.4g} s; replayed without pauses between operations "
        f"{numbers.replayed_s:.4g} s; with every operation at the usual time of its kind "
        f"{numbers.ideal_s:.4g} s"
    )
    yield f"slowdown {numbers.slowdown:.3f} (replayed / usual)"
    yield ""
    if found.named:
        yield from _table(found.named)
        yield ""
        yield from (_sentence(each) for each in found.named)
        yield _without(outcome)
    else:
        yield "nothing stands out: no worker, link, stage or data that makes steps longer"
    if numbers.pauses > _MUCH_PAUSE:
        yield (
            f"{1 - 1 / numbers.pauses:.0%} of a step are pauses that no recorded operation "
            "explains: launching, reading data, or operations that are not in the trace"
        )
    yield ""
    yield from _parts(outcome)


def _steps(trace: Trace) -> str:
    if len(trace.steps) == 1:
        return f"step {trace.steps[0]}"
    return f"{len(trace.steps)} steps ({trace.steps[0]} to {trace.steps[-1]})"


def _table(named: Iterable[Finding]) -> Iterator[str]:
    rows = [("cause", "who", "since step", "until", "factor", "costs")]
    rows += [
        (
            each.cause.value,
            each.subject,
            str(each.since),
            "the end" if each.until is None else str(each.until),
            f"x{each.factor:.2f}",
            f"{each.cost:.1%}",
        )
        for each in named
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _sentence(found: Finding) -> str:
    match found.cause:
        case Cause.COMPUTE:
            who = f"worker {found.subject} is slow, x{found.factor:.2f}"
        case Cause.MACHINE:
            who = f"{found.subject} is slow as a whole, x{found.factor:.2f}"
        case Cause.LINK:
            who = f"{_link_words(found)}, +{found.excess_s * 1e3:.3g} ms a transfer"
        case Cause.MODEL:
            who = f"{found.subject} is long, x{found.factor:.2f}: no worker is at fault"
        case Cause.DATA:
            who = f"data are uneven, x{found.factor:.2f}: no worker is at fault"
    return f"{who}: {found.evidence}."


def _link_words(found: Finding) -> str:
    is_link = found.subject == "-".join(str(worker) for worker in found.workers)
    return f"{'link ' if is_link else ''}{found.subject} is slow"


def _without(outcome: TraceOutcome) -> str:
    before_s, after_s = outcome.numbers.replayed_s, outcome.found.without_s
    return (
        f"Without what is named here a step would take {after_s:.4g} s "
        f"instead of {before_s:.4g} s ({1 - after_s / before_s:.1%} less)."
    )


def _parts(outcome: TraceOutcome) -> Iterator[str]:
    trace, numbers = outcome.trace, outcome.numbers
    yield "slowdown if only these were as recorded, and all else usual:"
    stages = {f"stage {stage}": value for stage, value in numbers.by_stage.items()}
    workers = {str(trace.worker_id(w)): value for w, value in numbers.by_worker.items()}
    kinds = {kind: value for kind, value in numbers.by_kind.items() if value > _SHOWN}
    yield from _largest("stages", stages)
    yield from _largest("workers", workers)
    yield from _largest("operations", kinds)


def _largest(label: str, values: Mapping[str, float]) -> Iterator[str]:
    ordered = sorted(values.items(), key=lambda pair: -pair[1])
    shown = ", ".join(f"{name} {value:.3f}" for name, value in ordered[:_MOST_NAMED])
    more = f", and {len(ordered) - _MOST_NAMED} more" if len(ordered) > _MOST_NAMED else ""
    yield f"  {label:<11} {shown or 'none'}{more}"
