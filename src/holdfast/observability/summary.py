"""A run in one small JSON file: what it computed, how fast, with what."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.observability.events import (
    Event,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerReady,
)
from holdfast.observability.jsonfile import write_json

SUMMARY_FILE = "summary.json"  # inside the directory of a run


@dataclass(frozen=True, kw_only=True)
class Summary:
    outcome: str  # "finished", "unfinished" or "failed: ..."
    steps: int  # finished in this run
    first_step: int
    losses: tuple[float, ...]  # one a step, in order
    parameters_sha256: str | None
    step_s: float | None  # median; the first step warms up and is left out
    tokens_per_s: float | None  # likewise without the first step
    workers: tuple[str, ...]
    peak_memory_bytes: Mapping[str, int]  # of each worker
    num_taken_back: int
    skipped_steps: tuple[int, ...]
    versions: Mapping[str, str]
    config: Mapping[str, Any]


def summarize(events: Iterable[Event], *, config: Mapping[str, Any]) -> Summary:
    """Fold the events of a run. A step that finished twice counts as it finished last."""
    events = list(events)
    steps = sorted(_last_by_step(events).values(), key=lambda event: event.step)
    ready = {event.worker: event for event in events if isinstance(event, WorkerReady)}
    finished = [event for event in events if isinstance(event, RunFinished)]
    started = [event for event in events if isinstance(event, RunStarted)]
    return Summary(
        outcome=_outcome(events),
        steps=len(steps),
        first_step=started[0].first_step if started else 0,
        losses=tuple(event.loss for event in steps),
        parameters_sha256=finished[-1].parameters_sha256 if finished else None,
        step_s=_median_s(steps),
        tokens_per_s=_tokens_per_s(steps),
        workers=tuple(sorted(ready)),
        peak_memory_bytes=finished[-1].peak_memory_bytes if finished else {},
        num_taken_back=sum(isinstance(event, StepTakenBack) for event in events),
        skipped_steps=tuple(event.step for event in steps if event.skipped),
        versions=_versions(ready.values()),
        config=config,
    )


def write_summary(path: Path, summary: Summary | Mapping[str, Any]) -> None:
    values = asdict(summary) if isinstance(summary, Summary) else dict(summary)
    write_json(path, values, indent=2)


def _last_by_step(events: Iterable[Event]) -> dict[int, StepFinished]:
    return {event.step: event for event in events if isinstance(event, StepFinished)}


def _outcome(events: Iterable[Event]) -> str:
    for event in reversed(list(events)):
        if isinstance(event, RunFailed):
            return f"failed: {event.reason}"
        if isinstance(event, RunFinished):
            return "finished"
    return "unfinished"


def _median_s(steps: list[StepFinished]) -> float | None:
    return median(event.took_s for event in _warm(steps)) if steps else None


def _tokens_per_s(steps: list[StepFinished]) -> float | None:
    took_s = sum(event.took_s for event in _warm(steps))
    return sum(event.tokens for event in _warm(steps)) / took_s if took_s else None


def _warm(steps: list[StepFinished]) -> list[StepFinished]:
    return steps[1:] or steps


def _versions(ready: Iterable[WorkerReady]) -> dict[str, str]:
    """Of each library; two workers that differ show as "2.6 / 2.7"."""
    found: dict[str, set[str]] = {}
    for event in ready:
        for name, version in event.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: " / ".join(sorted(versions)) for name, versions in sorted(found.items())}
