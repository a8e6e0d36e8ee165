"""What ``holdfast diagnose`` prints of a Holdfast run: sentences and tables, or JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from holdfast.detection.live.recorded import RunOutcome, SlowEpisode, Speeds
from holdfast.observability.details import details
from holdfast.observability.events import MitigationChosen
from holdfast.observability.lines import line


def as_json(outcome: RunOutcome) -> dict[str, Any]:
    """Steps count from 0, as in events.jsonl."""
    return {
        **asdict(outcome),
        "mitigations": [asdict(each) for each in outcome.mitigations],
        "faults": [asdict(each) for each in outcome.faults],
    }


def report(outcome: RunOutcome) -> Iterator[str]:
    yield (
        f"{outcome.source}: {outcome.num_steps} steps, {outcome.step_s:.4g} s a step (median), "
        f"{outcome.tokens_per_s:.4g} {outcome.counted} a second"
    )
    for fault in outcome.faults:
        yield line(fault) or fault.fault
    yield ""
    yield "told by the run itself:"
    yield from _list(outcome.by_run, "nothing slow")
    yield from _choices(outcome)
    yield ""
    yield "found in the recorded times:"
    if outcome.num_worker_steps:
        yield from _list(outcome.by_replay, "nothing slow")
    else:
        yield "  no times of operations were recorded (observe.operations = false)"
    verdict = list(_verdict(outcome))
    yield from ["", *verdict] if verdict else []


def _list(found: Iterable[SlowEpisode], nothing: str) -> Iterator[str]:
    found = list(found)
    if not found:
        yield f"  {nothing}"
    for each in found:
        yield f"  {_sentence(each)}"
        if each.speeds is not None:
            yield f"    {_speeds(each.speeds)}"


def _choices(outcome: RunOutcome) -> Iterator[str]:
    """The same words step after step are told once."""
    for words, group in groupby(outcome.mitigations, key=_why):
        steps = [choice.step + 1 for choice in group]
        more = f" to {steps[-1]}" if len(steps) > 1 else ""
        yield f"  step {steps[0]}{more}: {words}"


def _why(chosen: MitigationChosen) -> str:
    return "; ".join(details(chosen))


def _sentence(slow: SlowEpisode) -> str:
    more = f"+{slow.excess_s * 1e3:.3g} ms" if slow.cause == "slow link" else f"x{slow.factor:.2f}"
    end = "to the end" if slow.until is None else f"until step {slow.until}"
    return (
        f"{slow.cause}: {slow.subject} {more} from step {slow.since + 1} {end}, "
        f"told in step {slow.told + 1} ({slow.confidence:.0%} sure): {slow.evidence}"
    )


def _speeds(speeds: Speeds) -> str:
    """Seconds a step, and how much of the speed before is left."""
    parts = []
    names = ("before", "during", "after the change of plan", "after it")
    values = (speeds.before_s, speeds.during_s, speeds.mitigated_s, speeds.after_s)
    for name, value in zip(names, values, strict=True):
        if value is not None:
            share = (
                f" ({speeds.before_s / value:.0%})" if speeds.before_s and name != "before" else ""
            )
            parts.append(f"{name} {value:.4g} s{share}")
    return "a step: " + ", ".join(parts) if parts else "no steps to compare"


def _verdict(outcome: RunOutcome) -> Iterator[str]:
    own = {(each.cause, each.subject) for each in outcome.by_run}
    again = {(each.cause, each.subject) for each in outcome.by_replay}
    if not own and not again:
        yield "nothing stands out: no worker, link or machine was slow"
    missed = sorted(again - own)
    if missed:
        names = ", ".join(f"{cause} of {subject}" for cause, subject in missed)
        yield f"only in the recorded times: {names}"
    doubted = sorted(own - again)
    if doubted and outcome.num_worker_steps:
        names = ", ".join(f"{cause} of {subject}" for cause, subject in doubted)
        yield f"only told by the run, which could also measure: {names}"
