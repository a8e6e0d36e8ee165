"""The best layout for a cluster and its failures: stages, spares, logging, checkpoints.

Every candidate lives through the same world. The batch of a step stays the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.baselines.policies.catalogue import make_policy
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.errors import ConfigError
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.world import World

_POLICY = "holdfast"
_SAVE_OVERHEADS = (0.001, 0.005, 0.02)
_SPARE_PIPELINES = (0, 1, 2)


class LayoutChoice(NamedTuple):
    pipelines: int
    stages: int
    spares: int  # workers that wait
    logs: bool
    checkpoint_steps: int
    outcome: PolicyOutcome


def stage_counts(layers: int, workers: int) -> list[int]:
    """Cuts that leave hardly a layer over, and at least a pipeline."""
    counts = [s for s in range(1, min(layers, workers) + 1) if layers % s == 0]
    return counts or [1]


def optimised(
    world: World,
    make_job: Callable[[int, int], JobCosts],
    stages: Sequence[int],
    *,
    boot_s: float = 60.0,
    progress: Callable[[str, float], None] = lambda name, share: None,
) -> list[LayoutChoice]:
    """The best first: most samples. ``make_job``: pipelines and stages to costs."""
    layouts = list(_layouts(world.num_workers, stages))
    found = []
    for at, (pipelines, depth, spares) in enumerate(layouts):
        progress(f"{pipelines} x {depth}", at / len(layouts))
        try:
            job = make_job(pipelines, depth)
        except ConfigError:
            continue  # its state or a micro-batch does not fit
        found.append(_lived(world, job, spares, {}, boot_s))
    if not found:
        raise ConfigError(
            f"the model fits on no layout of {world.num_workers} workers: expected "
            "more memory or more machines"
        )
    found.sort(key=_merit)
    best = found[0]
    job = make_job(best.pipelines, best.stages)
    found += _settings(world, job, best.spares, boot_s)
    progress("", 1.0)
    different = {candidate[:-1]: candidate for candidate in found}
    return sorted(different.values(), key=_merit)


def _merit(candidate: LayoutChoice) -> tuple[float, bool, int, int]:
    """Most samples; among equals one that logs, as that is the safer one."""
    found = candidate
    return -round(found.outcome.samples), not found.logs, found.stages, found.spares


def _layouts(workers: int, stages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    for depth in stages:
        for spare in _SPARE_PIPELINES:
            pipelines = workers // depth - spare
            if pipelines >= 1:
                yield pipelines, depth, workers - pipelines * depth


def _settings(world: World, job: JobCosts, spares: int, boot_s: float) -> Iterator[LayoutChoice]:
    """Other choices for the best layout."""
    for logs in (0.0, 1.0):
        for overhead in _SAVE_OVERHEADS:
            given = {"logs": logs, "save_overhead": overhead}
            yield _lived(world, job, spares, given, boot_s)


def _lived(
    world: World, job: JobCosts, spares: int, given: Mapping[str, float], boot_s: float
) -> LayoutChoice:
    policy = make_policy(_POLICY, Paces(job), given)
    outcome = simulate(world, policy, boot_s=boot_s)
    period_s = job.samples_a_step / max(outcome.fault_free_rate, 1e-30)
    every = policy.saving(period_s).every_steps
    shape = job.shape
    logs = bool(given.get("logs", 1.0))
    return LayoutChoice(shape.pipelines, shape.stages, spares, logs, every, outcome)
