"""Made-up traces of operations of a 1F1B job, in the columns that ``holdfast diagnose`` reads."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

NAMES = (
    *("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"),
    *("seq_id", "mc", "gmc", "mb_id"),
)
FORWARD_S, TRANSFER_S, REDUCE_S = 0.050, 0.001, 0.020


class Slow(NamedTuple):
    """Of steps ``first`` to ``last``: times as long, or seconds more."""

    amount: float
    first: int = 0
    last: int = 10**9

    def holds(self, step: int) -> bool:
        return self.first <= step <= self.last


class World(NamedTuple):
    pipelines: int = 4
    stages: int = 4
    microbatches: int = 8
    steps: int = 12
    noise: float = 0.01
    workers: Mapping[tuple[int, int], Slow] = {}
    links: Mapping[tuple[int, int], Slow] = {}  # pipeline and the stage before the link
    reduces: Mapping[int, Slow] = {}  # of a stage
    stage_factor: Mapping[int, float] = {}
    sizes: float = 0.0  # standard deviation of the logarithm of a micro-batch's work
    backward_power: float = 1.0  # backward work grows with this power of the size
    long_data: Mapping[int, Slow] = {}  # of a pipeline: all but two of its micro-batches
    seed: int = 0


def columns(world: World) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(world.seed)
    rows = [row for step in range(world.steps) for row in _step(world, step, rng)]
    return {name: np.array([row[at] for row in rows]) for at, name in enumerate(NAMES)}


def _step(world: World, step: int, rng: np.random.Generator) -> list[tuple]:
    ends, rows = {}, []
    for pipeline in range(world.pipelines):
        ends |= _pipeline(world, step, pipeline, rng, rows)
    for stage in range(world.stages):
        slow = world.reduces.get(stage, Slow(0.0))
        took_s = REDUCE_S + (slow.amount if slow.holds(step) else 0.0)
        end_s = max(ends[p, stage] for p in range(world.pipelines)) + took_s
        for p in range(world.pipelines):
            rows.append(_row(world, p, stage, step, "grads-reduce-scatter", ends[p, stage], end_s))
            ends[p, stage] = end_s
    end_s = max(ends.values()) + 0.002
    rows += [_row(world, *w, step, "optimizer-clip-main-grad", ends[w], end_s) for w in ends]
    return rows


def _row(world, pipeline, stage, step, kind, start_s, end_s, number=0, microbatch=-1):
    rank = stage * world.pipelines + pipeline
    chunk = 0 if microbatch >= 0 else -1
    gmc = stage if microbatch >= 0 else -1
    return (pipeline, stage, rank, step, kind, start_s, end_s - start_s, number, chunk, gmc,
            microbatch)  # fmt: skip


def _batches(world: World, stage: int) -> list[list[tuple[str, int]]]:
    """What a worker does, in order; a send and a receive of one batch run side by side."""
    first, last, todo = stage == 0, stage == world.stages - 1, []
    warm = min(world.stages - 1 - stage, world.microbatches)
    for i in range(warm):
        todo += [[("forward-recv", i)], [("forward-compute", i)], [("forward-send", i)]]
    todo.append([("forward-recv", warm)])
    for i in range(world.microbatches - warm):
        todo += [
            [("forward-compute", warm + i)],
            [("forward-send", warm + i), ("backward-recv", i)],
        ]
        todo += [[("backward-compute", i)], [("backward-send", i)]]
        if warm + i + 1 < world.microbatches:
            todo[-1].append(("forward-recv", warm + i + 1))
    for i in range(world.microbatches - warm, world.microbatches):
        todo += [[("backward-recv", i)], [("backward-compute", i)], [("backward-send", i)]]
    missing = {"forward-recv", "backward-send"} if first else set()
    missing |= {"forward-send", "backward-recv"} if last else set()
    kept = [[op for op in batch if op[0] not in missing] for batch in todo]
    return [batch for batch in kept if batch]


def _pipeline(world, step, pipeline, rng, rows):
    """Runs one pipeline; returns when each of its workers was done."""
    sizes = np.exp(rng.normal(0.0, world.sizes, world.microbatches))
    more = world.long_data.get(pipeline, Slow(1.0))
    sizes[2:] *= more.amount if more.holds(step) else 1.0
    todo = {stage: _batches(world, stage) for stage in range(world.stages)}
    clock, begun = dict.fromkeys(todo, 0.0), {}
    while any(todo.values()):
        moved = False
        for stage in [stage for stage in todo if todo[stage]]:
            batch, start_s = todo[stage][0], clock[stage]
            begun |= {(stage, *op): start_s for op in batch}
            ends = [_end_s(world, step, pipeline, stage, op, start_s, begun, sizes, rng)
                    for op in batch]  # fmt: skip
            if None in ends:
                continue
            for (kind, i), end_s in zip(batch, ends, strict=True):
                of = i if kind.endswith("compute") else -1
                rows.append(_row(world, pipeline, stage, step, kind, start_s, end_s, i, of))
            clock[stage], moved = max(ends), True
            todo[stage].pop(0)
        assert moved, "the pipeline is stuck"
    return {(pipeline, stage): clock[stage] for stage in clock}


def _end_s(world, step, pipeline, stage, op, start_s, begun, sizes, rng):
    """None: the other side is not there yet."""
    kind, i = op
    if kind.endswith("compute"):
        slow = world.workers.get((pipeline, stage), Slow(1.0))
        back = kind.startswith("backward")
        took_s = FORWARD_S * (2 * sizes[i] ** world.backward_power if back else sizes[i])
        took_s *= world.stage_factor.get(stage, 1.0) * np.exp(rng.normal(0.0, world.noise))
        return start_s + took_s * (slow.amount if slow.holds(step) else 1.0)
    way, side = kind.split("-")
    other = stage + (1 if (way == "forward") == (side == "send") else -1)
    there_s = begun.get((other, f"{way}-{'recv' if side == 'send' else 'send'}", i))
    if there_s is None:
        return None
    slow = world.links.get((pipeline, min(stage, other)), Slow(0.0))
    return max(start_s, there_s) + TRANSFER_S + (slow.amount if slow.holds(step) else 0.0)
