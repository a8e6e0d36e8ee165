"""Holdfast beside all policies in every cell of worlds x sizes x models, by intervals."""

import time
from collections.abc import Iterator
from statistics import mean
from typing import Any, NamedTuple

from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.simulator.costs.presets import preset
from holdfast.simulator.costs.transformer import Hardware, transformer_costs
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.worlds.files import PACKAGED, packaged_trace
from holdfast.simulator.worlds.generate import Failures, generated
from holdfast.simulator.worlds.world import World, scaled

DAY_S = 86400.0
POISSON_S = {"6h": 21600.0, "2h": 7200.0, "30m": 1800.0, "10m": 600.0}
FREQUENT_S = 1800.0  # failures this often, or more
SIZES = (24, 128, 1024, 4096)
STAGES = {"350m": (4, 4, 4, 4), "6.7b": (4, 8, 8, 8), "145b": (8, 16, 16, 16)}
SEED, DEPTHS = 1, 2  # micro-batches a pipeline, in stages
OURS = "holdfast"


class Cell(NamedTuple):
    world: str
    workers: int
    model: str
    rates: dict[str, float]  # samples a second
    every_s: float  # between failures
    seconds: float  # to simulate

    @property
    def second(self) -> str:
        return max((name for name in self.rates if name != OURS), key=self.rates.__getitem__)

    @property
    def margin(self) -> float:
        best = self.rates[self.second]
        return self.rates[OURS] / best if best else float("inf")

    @property
    def over_recycle(self) -> float | None:
        theirs = self.rates["recycle"]
        return self.rates[OURS] / theirs if theirs else None


def world_of(name: str, workers: int) -> World:
    if name in POISSON_S:
        failures = Failures(mtbf_s=POISSON_S[name])
        return generated(failures, machines=workers, length_s=DAY_S, seed=SEED)
    return scaled(packaged_trace(name, SEED), workers)


def job_of(model: str, workers: int, depths: int = DEPTHS) -> JobCosts:
    stages = STAGES[model][SIZES.index(workers)] if workers in SIZES else STAGES[model][-1]
    return transformer_costs(
        preset(model),
        Hardware(),
        pipelines=workers // stages,
        stages=stages,
        microbatches=depths * stages,
    )


def cells(
    sizes: tuple[int, ...] = SIZES,
    worlds: tuple[str, ...] = (*PACKAGED, *POISSON_S),
    models: tuple[str, ...] = tuple(STAGES),
    depths: int = DEPTHS,
) -> Iterator[Cell]:
    for workers in sizes:
        for model in models:
            paces = Paces(job_of(model, workers, depths))
            for name in worlds:
                start_s = time.perf_counter()
                world = world_of(name, workers)
                found = compare_policies(world, paces.job, list(BY_NAME), paces=paces)
                rates = {outcome.policy: outcome.rate for outcome in found}
                every_s = world.length_s / world.num_losses
                yield Cell(name, workers, model, rates, every_s, time.perf_counter() - start_s)


def matrix_figures(found: list[Cell]) -> dict[str, Any]:
    ahead = [cell for cell in found if cell.margin > 1]
    frequent = [cell for cell in found if cell.every_s <= 1.1 * FREQUENT_S]
    ratios = [cell.over_recycle for cell in frequent if cell.over_recycle is not None]
    return {
        "cells_ahead": len(ahead),
        "cells": len(found),
        "behind": [
            f"{one.world}, {one.workers} workers, {one.model}: {one.margin:.3f} x {one.second}"
            for one in found
            if one.margin <= 1
        ],
        "least_margin": round(min(cell.margin for cell in found), 3),
        "over_recycle_frequent": round(mean(ratios), 3) if ratios else None,
    }


def without_floor() -> float:
    """Over a ReCycle that may be faster than 1F1B: 128 workers, recycle's trace, 30 and 10 min."""
    ratios = []
    for model in STAGES:
        paces = Paces(job_of(model, 128))
        for name in ("recycle", "30m", "10m"):
            ours, theirs = compare_policies(
                world_of(name, 128),
                paces.job,
                [OURS, "recycle"],
                constants={"recycle": {"floor_1f1b": 0.0}},
                paces=paces,
            )
            ratios.append(ours.rate / theirs.rate)
    return mean(ratios)


def line(cell: Cell) -> str:
    over = "  -  " if cell.over_recycle is None else f"{cell.over_recycle:5.3f}"
    return (
        f"{cell.world:9} {cell.workers:5} {cell.model:5} {cell.rates[OURS]:10.4g} samples/s, "
        f"{cell.margin:5.3f} x {cell.second:10} {over} x recycle, {cell.seconds:.1f} s"
    )


def seconds_24h(workers: int) -> float:
    """All policies for 24 h, a failure every 10 min, 6.7B."""
    start_s = time.perf_counter()
    job = job_of("6.7b", workers)
    compare_policies(world_of("10m", workers), job, list(BY_NAME))
    return time.perf_counter() - start_s
