"""Intervals beside messages: Holdfast in the same random worlds, both simulated.

Differences that are left come from what intervals do not know: where in a step a failure comes,
how long a joiner has to wait for the end of a step, and that the last step is not finished.
"""

import random
import statistics
import time
from typing import Any, NamedTuple

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.simulator.by_messages.lived import live_through
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.worlds.generate import Failures, generated
from holdfast.simulator.worlds.world import World

LAYOUTS = ((2, 2), (4, 2), (2, 4), (3, 3), (4, 3), (4, 4))
MTBF_S, REPAIR_S = (300.0, 600.0, 1200.0), (60.0, 300.0)
LENGTH_S, BOOT_S = 3600.0, 15.0


class Compared(NamedTuple):
    seed: int
    world: World
    job: JobCosts
    messages_rate: float
    intervals_rate: float
    cpu_s: float

    @property
    def error(self) -> float:
        return abs(self.intervals_rate / self.messages_rate - 1)


def drawn(seed: int, length_s: float) -> tuple[World, JobCosts]:
    dice = random.Random(f"resolutions-{seed}")
    pipelines, stages = dice.choice(LAYOUTS)
    unit_s = dice.choice((0.2, 0.4, 0.8))
    costs = Costs.uniform(
        stages, forward_s=unit_s, input_s=unit_s, weight_s=unit_s, link_s=0.01 * unit_s
    )
    each = stages * dice.choice((2, 3))
    shape = Shape(pipelines, stages, pipelines * each)
    failures = Failures(mtbf_s=dice.choice(MTBF_S), repair_s=dice.choice(REPAIR_S))
    workers = pipelines * stages
    world = generated(failures, machines=workers, length_s=length_s, seed=seed)
    return world, JobCosts(name=f"{pipelines}x{stages}", shape=shape, costs=costs)


def compared(seed: int, length_s: float = LENGTH_S) -> Compared:
    world, job = drawn(seed, length_s)
    paces, start_s = Paces(job), time.process_time()
    live = live_through(world, job, paces=paces, boot_s=BOOT_S, seed=seed)
    cpu_s = time.process_time() - start_s
    [other] = compare_policies(world, job, ["holdfast"], paces=paces, boot_s=BOOT_S)
    return Compared(seed, world, job, live.rate, other.rate, cpu_s)


def resolutions(quick: bool, worlds: int) -> dict[str, Any]:
    print("Intervals beside messages, samples/s (simulated)")
    found = []
    for seed in range(2 if quick else worlds):
        one = compared(seed, LENGTH_S / 6 if quick else LENGTH_S)
        found.append(one)
        print(
            f"seed {seed:2} {one.job.name}, {one.job.shape.microbatches:2} micro-batches, "
            f"{one.world.num_losses:2} losses: {one.messages_rate:8.4f} {one.intervals_rate:8.4f} "
            f"{one.intervals_rate / one.messages_rate - 1:+7.1%}, {one.cpu_s:.0f} CPU s",
            flush=True,
        )
    errors = [one.error for one in found]
    return {
        "error_intervals_messages": {
            "mean": round(statistics.fmean(errors), 4),
            "max": round(max(errors), 4),
            "worlds": len(errors),
        }
    }
