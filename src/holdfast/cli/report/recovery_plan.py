"""What ``holdfast recovery-plan`` prints: tables, or everything as JSON. Plans nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from holdfast.planner.logs.groups import Groups, size_words
from holdfast.planner.logs.replay_time import ReplayCosts


class RecoveryComparison(NamedTuple):
    costs: ReplayCosts
    budget_bytes: int | None
    plans: dict[str, Groups]
    curve: list[tuple[int, int, Groups, Groups]]  # per cent, bytes, best, greedy
    swift_model_s: float


def as_json(outcome: RecoveryComparison) -> dict[str, Any]:
    return {
        "stages": outcome.costs.num_stages,
        "helpers": outcome.costs.num_helpers,
        "interval_steps": outcome.costs.interval_steps,
        "lost_steps": outcome.costs.lost_steps,
        "budget_bytes": outcome.budget_bytes,
        "swift_model_s": outcome.swift_model_s,
        "plans": {name: asdict(plan) for name, plan in outcome.plans.items()},
        "curve": [
            {"budget_bytes": num_bytes, "best": asdict(best), "greedy": asdict(greedy)}
            for _, num_bytes, best, greedy in outcome.curve
        ],
    }


def report(outcome: RecoveryComparison) -> Iterator[str]:
    costs, best = outcome.costs, outcome.plans["best"]
    whole = size_words(sum(costs.boundary_bytes))
    budget = "any size" if outcome.budget_bytes is None else size_words(outcome.budget_bytes)
    yield (
        f"{costs.num_stages} stages, {costs.num_microbatches} micro-batches; a checkpoint every "
        f"{costs.interval_steps} steps, {costs.lost_steps:g} lost, "
        f"{costs.num_helpers} to replay them"
    )
    yield f"budget {budget}; all {costs.num_stages - 1} boundaries take {whole}"
    yield ""
    yield from _table(outcome)
    yield ""
    yield f"best: {best.reason}"
    yield f"{'stages':>12} {'log before':>12} {'recovery':>12}"
    for run in best.groups:
        before = size_words(costs.boundary_bytes[run[0] - 1]) if run[0] else "-"
        longest_s = max(best.stage_s[stage] for stage in run)
        yield f"{_run_words(run):>12} {before:>12} {longest_s:>10.2f} s"
    yield ""
    yield f"{'budget':>22} {'groups':>7} {'expected':>12} {'worst':>12} {'greedy':>12}"
    for share, num_bytes, at_best, greedy in outcome.curve:
        yield (
            f"{f'{share} % = {size_words(num_bytes)}':>22} {len(at_best.groups):>7} "
            f"{at_best.expected_s:>10.2f} s {at_best.worst_s:>10.2f} s {greedy.expected_s:>10.2f} s"
        )
    yield ""
    yield (
        f"swift's own model: {outcome.swift_model_s:.2f} s for one stage alone, if nothing but "
        "computing took time"
    )


def _table(outcome: RecoveryComparison) -> Iterator[str]:
    names = {"greedy": "swift's greedy", "everything": "log everything", "nothing": "log nothing"}
    yield f"{'':16} {'groups':>7} {'logged':>7} {'log':>10} {'expected':>12} {'worst':>12}"
    for key, plan in outcome.plans.items():
        proof = "  proven least" if plan.proven else ""
        yield (
            f"{names.get(key, key):16} {len(plan.groups):>7} {len(plan.boundaries):>7} "
            f"{size_words(plan.num_bytes):>10} {plan.expected_s:>10.2f} s {plan.worst_s:>10.2f} s"
            f"{proof}"
        )


def _run_words(run: Iterable[int]) -> str:
    first, *rest = run
    return f"{first}-{rest[-1]}" if rest else str(first)
