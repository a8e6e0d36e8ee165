"""Outcomes as plain values, for JSON and for the other answers."""

from collections.abc import Sequence
from typing import Any

from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.simulator.intervals.optimising import LayoutChoice
from holdfast.simulator.intervals.outcome import PolicyOutcome, Segment, TimeKind
from holdfast.simulator.worlds.world import World


def world_values(world: World) -> dict[str, Any]:
    return {
        "name": world.name,
        "machines": world.machines,
        "workers_a_machine": world.workers_a_machine,
        "hours": world.length_s / 3600,
        "losses": world.num_losses,
        "mean_machines": world.mean_alive(),
    }


def job_values(job: JobCosts) -> dict[str, Any]:
    shape = job.shape
    return {
        "name": job.name,
        "pipelines": shape.pipelines,
        "stages": shape.stages,
        "microbatches": shape.microbatches,
        "samples_a_step": job.samples_a_step,
        "gpus": job.num_workers * job.gpus_a_worker,
    }


def outcome_values(outcome: PolicyOutcome, price_gpu_h: float) -> dict[str, Any]:
    return {
        "policy": outcome.policy,
        "resolution": outcome.resolution,
        "samples": outcome.samples,
        "samples_s": outcome.rate,
        "goodput": outcome.goodput,
        "fault_free_samples_s": outcome.fault_free_rate,
        "plain_samples_s": outcome.plain_rate,
        "fault_scaled_samples_s": outcome.fault_scaled_rate,
        "shares": {each.value: outcome.share(each) for each in TimeKind},
        "changes": outcome.num_changes,
        "cost_a_day": outcome.cost_a_day(price_gpu_h),
        "samples_for_1": outcome.samples_for(price_gpu_h),
        "cannot_run": outcome.reason,
        "leaves_out": BY_NAME[outcome.policy].leaves_out,
        "constants": {
            row.name: {"value": row.value, "source": row.source} for row in outcome.constants
        },
    }


def candidate_values(candidate: LayoutChoice, price_gpu_h: float) -> dict[str, Any]:
    return {
        "pipelines": candidate.pipelines,
        "stages": candidate.stages,
        "spares": candidate.spares,
        "logs": candidate.logs,
        "checkpoint_steps": candidate.checkpoint_steps,
        "samples_s": candidate.outcome.rate,
        "samples_for_1": candidate.outcome.samples_for(price_gpu_h),
    }


def all_values(
    world: World, job: JobCosts, outcomes: Sequence[PolicyOutcome], price_gpu_h: float
) -> dict[str, Any]:
    return {
        "world": world_values(world),
        "job": job_values(job),
        "price_gpu_h": price_gpu_h,
        "policies": [outcome_values(outcome, price_gpu_h) for outcome in outcomes],
    }


def averaged(segments: Sequence[Segment], length_s: float, parts: int) -> list[float]:
    """Samples a second in each of so many equal parts of the time."""
    width_s = length_s / parts
    sums = [0.0] * parts
    for start_s, end_s, _, rate, _ in segments:
        first, last = int(start_s / width_s), min(int(end_s / width_s), parts - 1)
        for at in range(first, last + 1):
            inside_s = min(end_s, (at + 1) * width_s) - max(start_s, at * width_s)
            sums[at] += max(inside_s, 0.0) * rate
    return [total / width_s for total in sums]
