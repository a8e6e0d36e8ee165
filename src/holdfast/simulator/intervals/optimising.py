"""The best layout for a cluster and its failures: stages, spares, logging, checkpoints.

Every candidate lives through the same world. The batch of a step stays the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from holdfast.baselines.policies.catalogue import make_policy
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.errors import ConfigError
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.world import World

_POLICY = "holdfast"
_SAVE_OVERHEADS = (0.001, 0.005, 0.02)  # of the time
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
    constants: Mapping[str, float] | None = None,
    boot_s: float = 60.0,
    progress: Callable[[str, float], None] = lambda name, share: None,
) -> list[LayoutChoice]:
    """The best first: most samples. ``make_job``: pipelines and stages to costs.

    ``constants``: of the policy, all but those that are tried out.
    """
    given = dict(constants or {})
    layouts = list(_layouts(world, stages))
    found: list[LayoutChoice] = []
    for at, (pipelines, depth, spares) in enumerate(layouts):
        progress(f"{pipelines} x {depth}", at / len(layouts))
        try:
            job = make_job(pipelines, depth)
        except ConfigError:
            continue  # its state or a micro-batch does not fit
        found += _settings(world, job, spares, given, boot_s)
    if not found:
        raise ConfigError(
            f"the model fits on no layout of {world.num_workers} workers: expected "
            "more memory or more machines"
        )
    progress("", 1.0)
    different = {candidate[:-1]: candidate for candidate in found}
    return sorted(different.values(), key=_merit)


def shown(found: Sequence[LayoutChoice]) -> list[LayoutChoice]:
    """Of each layout the best, and of the best layout all."""
    best: dict[tuple[int, ...], LayoutChoice] = {}
    for candidate in found:
        best.setdefault(candidate[:3], candidate)
    first = found[0][:3]
    return [one for one in found if one[:3] == first or best[one[:3]] is one]


def _merit(candidate: LayoutChoice) -> tuple[float, bool, int, int]:
    """Most samples; among equals one that logs, as that is the safer one."""
    found = candidate
    return -round(found.outcome.samples), not found.logs, found.stages, found.spares


def _layouts(world: World, stages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Pipelines, stages, and workers that wait: those of up to two pipelines. Whole machines."""
    for depth in stages:
        for spare in _SPARE_PIPELINES:
            pipelines = world.num_workers // depth - spare
            if pipelines >= 1 and pipelines * depth % world.workers_a_machine == 0:
                yield pipelines, depth, world.num_workers - pipelines * depth


def _settings(
    world: World, job: JobCosts, spares: int, given: Mapping[str, float], boot_s: float
) -> Iterator[LayoutChoice]:
    paces, shape = Paces(job), job.shape
    for logs, overhead in product((True, False), _SAVE_OVERHEADS):
        table = {**given, "logs": float(logs), "save_overhead": overhead}
        policy = make_policy(_POLICY, paces, table)
        outcome = simulate(world, policy, boot_s=boot_s)
        period_s = job.samples_a_step / max(outcome.fault_free_rate, 1e-30)
        every = policy.saving(period_s).every_steps
        yield LayoutChoice(shape.pipelines, shape.stages, spares, logs, every, outcome)
