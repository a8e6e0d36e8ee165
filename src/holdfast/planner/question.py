"""A question to the planner, from plain numbers: who is dead or slow, what operations take.

Refuses whatever cannot be planned before any time is spent on it. Plans nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Literal, NamedTuple

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import Argument, ConfigError
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import default_memory
from holdfast.schedule.operation import Shape

COST_FIELDS = {
    "F": "forward_s",
    "B": "input_s",
    "W": "weight_s",
    "BW": "fused_s",
    "R": "step_s",
    "link": "link_s",
}
MOST_MICROBATCHES_HELD = 1_000_000_000
_MOST_WORKERS = 100_000
# Beyond these, whole ticks could not tell one duration from another.
_MOST_S, _LEAST_S, _MOST_RATIO, _LEAST_SPEED = 1e9, 1e-9, 1e6, 1e-6
_MOST_FUSED = 1000  # times its parts: a tick is a millionth of it
_MOST_STEPS = 1_000_000_000
_DEAD, _SLOW = Argument("dead"), Argument("slow")


def shape_of(pipelines: int, stages: int, microbatches: int) -> Shape:
    shape = Shape(pipelines, stages, microbatches)
    if shape.pipelines * shape.stages > _MOST_WORKERS:
        raise ConfigError(
            Argument("pipelines", shape.pipelines),
            " x ",
            Argument("stages", shape.stages),
            f": expected at most {_MOST_WORKERS:,} workers",
        )
    return shape


def costs_of(given: Mapping[str, float], stages: int) -> Costs:
    """Seconds of ``F``, ``B``, ``W``, ``BW``, ``R`` and ``link``, for every stage alike; what is
    left out keeps its default."""
    costs = Argument("costs")
    for name, seconds in given.items():
        if name not in COST_FIELDS:
            expected = f"expected names {', '.join(COST_FIELDS)}"
            raise ConfigError(costs, f": {name!r}: {expected}")
        if isfinite(seconds) and seconds > _MOST_S:
            raise ConfigError(costs, f": '{name}={seconds:g}': expected at most {_MOST_S:g} s")
    made = Costs.uniform(stages, **{COST_FIELDS[name]: value for name, value in given.items()})
    longest_s = _longest_s(made)
    if longest_s < _LEAST_S:
        raise ConfigError(
            costs,
            f": F takes {made.forward_s[0]:g} s, B and W no longer: expected one of them to take "
            f"at least {_LEAST_S:g} s",
        )
    split_s = made.forward_s[0] + made.input_s[0] + made.weight_s[0]
    if made.fused_s[0] > _MOST_FUSED * split_s:
        most = f"expected at most {_MOST_FUSED} x F+B+W, {split_s:g} s"
        raise ConfigError(costs, f": BW={made.fused_s[0]:g}: {most}")
    for name, seconds in (("R", made.step_s[0]), ("link", made.link_s)):
        _require_ratio(costs, f": {name}={seconds:g}", seconds, longest_s)
    return made


def _longest_s(costs: Costs) -> float:
    return max(*costs.forward_s, *costs.input_s, *costs.weight_s, *costs.fused_s)


def _require_ratio(argument: Argument, what: str, seconds: float, longest_s: float) -> None:
    if seconds > _MOST_RATIO * longest_s:
        raise ConfigError(
            argument,
            f"{what}: expected at most {_MOST_RATIO:,.0f} x the longest of F, B, W and BW, "
            f"{longest_s:g} s",
        )


def problem_of(
    shape: Shape,
    costs: Costs,
    *,
    memory: int | None = None,
    dead: Iterable[str] = (),
    slow: Iterable[tuple[str, float]] = (),
    slow_links: Iterable[tuple[str, float]] = (),
    optimizer: Literal["staggered", "global"] = "staggered",
    horizon: int | None = None,
    move_cost: float | None = None,
    moves: bool = True,
    second_stages: bool = True,
) -> Problem:
    """Pairs, not mappings: whatever is given twice is refused.

    ``slow``: a worker's speed; ``slow_links``: seconds of ``0.1-0.2``; ``memory``: micro-batches
    in flight a worker and stage it holds, None: twice the stages.
    """
    room = default_memory(shape.stages) if memory is None else memory
    if not 1 <= room <= MOST_MICROBATCHES_HELD:
        expected = f"expected 1 to {MOST_MICROBATCHES_HELD:,} micro-batches in flight"
        raise ConfigError(Argument("memory", room), f": {expected}")
    workers = _Workers(shape)
    gone = _once(_DEAD, ((workers.parse("dead", name), 0.0) for name in dead))
    speeds = _once(_SLOW, (_slow(workers, name, speed) for name, speed in slow))
    both = sorted(gone.keys() & speeds.keys())
    if both:
        raise ConfigError(
            f"worker {both[0]} is in ", _DEAD, " and in ", _SLOW, ": expected one of them"
        )
    _require_holders(shape, gone)
    return Problem(
        shape=shape,
        costs=costs,
        memory=Memory(limit=float(room)),
        members=tuple(
            Member(worker, worker.stage, speeds.get(worker, 1.0))
            for worker in workers.all()
            if worker not in gone
        ),
        links=LinkCosts(unusual=_slow_links(slow_links, workers, gone, _longest_s(costs))),
        staggered=optimizer == "staggered",
        horizon_steps=_horizon_steps(horizon),
        move_s=_move_s(move_cost, shape, costs),
        two_stages=second_stages,
        may_move=moves,
    )


class _Workers(NamedTuple):
    shape: Shape

    def all(self) -> Iterator[WorkerId]:
        for pipeline in range(self.shape.pipelines):
            for stage in range(self.shape.stages):
                yield WorkerId(pipeline, stage)

    def parse(self, argument: str, text: str) -> WorkerId:
        last = WorkerId(self.shape.pipelines - 1, self.shape.last_stage)
        try:
            worker = parse_worker(text)
        except ValueError:
            worker = None
        if worker is None or worker.pipeline > last.pipeline or worker.stage > last.stage:
            raise ConfigError(
                Argument(argument, text),
                f": no such worker: expected pipeline.stage from 0.0 to {last}",
            )
        return worker


def _once(argument: Argument, pairs: Iterable[tuple[WorkerId, float]]) -> dict[WorkerId, float]:
    found: dict[WorkerId, float] = {}
    for worker, speed in pairs:
        if worker in found:
            raise ConfigError(argument, f": worker {worker} is given twice: expected it once")
        found[worker] = speed
    return found


def _slow(workers: _Workers, name: str, speed: float) -> tuple[WorkerId, float]:
    worker = workers.parse("slow", name)
    if not _LEAST_SPEED <= speed <= 1:
        raise ConfigError(
            Argument("slow", f"{name}={speed:g}"),
            f": expected a speed from {_LEAST_SPEED:g} to 1 (1 = normal, 0.5 = takes twice as "
            "long); who does nothing belongs in ",
            _DEAD,
        )
    return worker, speed


def _slow_links(
    given: Iterable[tuple[str, float]],
    workers: _Workers,
    dead: Mapping[WorkerId, float],
    longest_s: float,
) -> dict[tuple[WorkerId, WorkerId], LinkCost]:
    links: dict[tuple[WorkerId, WorkerId], LinkCost] = {}
    for name, delay_s in given:
        argument = Argument("slow_links", f"{name}={delay_s:g}")
        ends = [workers.parse("slow_links", end.strip()) for end in name.split("-")]
        if len(ends) != 2 or ends[0] == ends[1] or not 0 <= delay_s < float("inf"):
            raise ConfigError(
                argument, ": expected two workers and the delay in seconds, e.g. 0.1-0.2=0.5"
            )
        _require_ratio(argument, "", delay_s, longest_s)
        gone = next((end for end in ends if end in dead), None)
        if gone is not None:
            raise ConfigError(argument, f": {gone} is in ", _DEAD, ": expected live workers")
        one, other = sorted(ends)
        if (one, other) in links:
            raise ConfigError(argument, ": this link is given twice: expected it once")
        links[one, other] = LinkCost(delay_s)
    return links


def _require_holders(shape: Shape, dead: Mapping[WorkerId, float]) -> None:
    for stage in range(shape.stages):
        holders = [WorkerId(pipeline, stage) for pipeline in range(shape.pipelines)]
        if all(worker in dead for worker in holders):
            first = " or ".join(map(str, holders[:3]))
            raise ConfigError(
                _DEAD,
                f": stage {stage} has no live holder, so nobody has its state: expected at least "
                f"one, e.g. {first}, to be alive",
            )


def _horizon_steps(given: int | None) -> int:
    if given is None:
        return Problem.horizon_steps
    if not 1 <= given <= _MOST_STEPS:
        raise ConfigError(Argument("horizon", given), f": expected 1 to {_MOST_STEPS:,} steps")
    return given


def _move_s(given: float | None, shape: Shape, costs: Costs) -> float:
    """By default a move costs two steps' work of one worker."""
    if given is None:
        each_s = sum(costs.forward_s[s] + costs.backward_s(s) for s in range(shape.stages))
        return 2 * shape.microbatches_per_pipeline * each_s / shape.stages
    if not 0 <= given <= _MOST_S:
        raise ConfigError(
            Argument("move_cost", f"{given:g}"), f": expected 0 to {_MOST_S:g} seconds"
        )
    return given
