"""What the words of ``holdfast plan`` ask for: costs, memory, and who is dead or slow.

Refuses whatever cannot be planned before any time is spent on it. Plans nothing.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from math import floor, isfinite
from typing import NamedTuple

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ConfigError
from holdfast.planner.problem import Link, Links, Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import default_memory
from holdfast.schedule.operation import Shape

_COST_FIELDS = {
    "F": "forward_s",
    "B": "input_s",
    "W": "weight_s",
    "BW": "fused_s",
    "R": "step_s",
    "link": "link_s",
}
_MOST_WORKERS = 100_000
# Beyond these, whole ticks could not tell one duration from another.
_MOST_S, _LEAST_S, _MOST_RATIO, _LEAST_SPEED = 1e9, 1e-9, 1e6, 1e-6
_MOST_FUSED = 1000  # times its parts: a tick is a millionth of it
_MOST_MICROBATCHES_HELD = 1_000_000_000
_MOST_STEPS = 1_000_000_000
_MOST_CERTIFY_S = 24 * 3600


class Room(NamedTuple):
    """Micro-batches in flight a worker, and how that was said."""

    num_microbatches: int
    words: str


def shape_of(args: argparse.Namespace) -> Shape:
    shape = Shape(args.pipelines, args.stages, args.microbatches)
    if shape.pipelines * shape.stages > _MOST_WORKERS:
        raise ConfigError(
            f"--pipelines {shape.pipelines} x --stages {shape.stages}: expected at most "
            f"{_MOST_WORKERS:,} workers"
        )
    return shape


def parse_costs(text: str, stages: int) -> Costs:
    """``F=1,B=1.2,link=0.1`` for every stage alike; what is left out keeps its default."""
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        field = _COST_FIELDS.get(name.strip())
        try:
            seconds = float(value)
        except ValueError:
            field = None
        if field is None or field in given:
            raise ConfigError(
                f"--costs: {part!r}: expected name=seconds, each name once, "
                f"with names {', '.join(_COST_FIELDS)}"
            )
        if isfinite(seconds) and seconds > _MOST_S:
            raise ConfigError(f"--costs: {part!r}: expected at most {_MOST_S:g} s")
        given[field] = seconds
    costs = Costs.uniform(stages, **given)
    longest_s = _longest_s(costs)
    if longest_s < _LEAST_S:
        raise ConfigError(
            f"--costs {text}: F takes {costs.forward_s[0]:g} s, B and W no longer: expected one "
            f"of them to take at least {_LEAST_S:g} s"
        )
    split_s = costs.forward_s[0] + costs.input_s[0] + costs.weight_s[0]
    if costs.fused_s[0] > _MOST_FUSED * split_s:
        raise ConfigError(
            f"--costs: BW={costs.fused_s[0]:g}: expected at most {_MOST_FUSED} x F+B+W, "
            f"{split_s:g} s"
        )
    for name, seconds in (("R", costs.step_s[0]), ("link", costs.link_s)):
        _require_ratio(f"--costs: {name}={seconds:g}", seconds, longest_s)
    return costs


def _longest_s(costs: Costs) -> float:
    return max(*costs.forward_s, *costs.input_s, *costs.weight_s, *costs.fused_s)


def _require_ratio(what: str, seconds: float, longest_s: float) -> None:
    if seconds > _MOST_RATIO * longest_s:
        raise ConfigError(
            f"{what}: expected at most {_MOST_RATIO:,.0f} x the longest of F, B, W and BW, "
            f"{longest_s:g} s"
        )


def parse_memory(text: str | None, stages: int) -> Room:
    """``16``: micro-batches. ``2.0`` or ``2S``: times the number of stages."""
    if text is None:
        return Room(default_memory(stages), "2 x stages")
    if re.fullmatch(r"[0-9]{1,12}", text):
        room = Room(int(text), f"--memory {text}")
    else:
        found = re.fullmatch(r"([0-9]{0,9}\.?[0-9]{0,9})[sS]?", text)
        factor = _number(found[1]) if found else None
        if factor is None:
            raise ConfigError(
                f"--memory {text}: expected a whole number of micro-batches in flight a worker, "
                "e.g. 16, or a multiple of the number of stages with a point or an S, e.g. 2.0 "
                "or 2S"
            )
        # 0.57 x 100 is a little below 57.
        room = Room(floor(factor * stages + 1e-9), f"--memory {text}: {factor:g} x {stages} stages")
    if not 1 <= room.num_microbatches <= _MOST_MICROBATCHES_HELD:
        raise ConfigError(
            f"--memory {text} = {room.num_microbatches} micro-batches in flight a worker: expected "
            f"at least 1 for any schedule to fit, and at most {_MOST_MICROBATCHES_HELD:,}; "
            f"{default_memory(stages)} let most plans reach their bound"
        )
    return room


def parse_limit_s(text: str) -> float:
    """``30s``, ``30`` or ``2m``."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|)", text)
    limit_s = float(found[1]) * (60 if found[2] == "m" else 1) if found else 0.0
    if not 0 < limit_s <= _MOST_CERTIFY_S:
        raise ConfigError(f"--certify {text}: expected a time up to 24 hours, e.g. 30s, 30 or 2m")
    return limit_s


def problem_of(args: argparse.Namespace, shape: Shape, costs: Costs, room: Room) -> Problem:
    workers = _Workers(shape)
    dead = _once("--dead", ((workers.parse("--dead", w), 0.0) for w in _words(args.dead)))
    slow = _once("--slow", (_slow(workers, word) for word in _words(args.slow)))
    both = sorted(dead.keys() & slow.keys())
    if both:
        raise ConfigError(f"worker {both[0]} is in --dead and in --slow: expected one of them")
    _require_holders(shape, dead)
    return Problem(
        shape=shape,
        costs=costs,
        memory=Memory(limit=float(room.num_microbatches)),
        members=tuple(
            Member(worker, worker.stage, slow.get(worker, 1.0))
            for worker in workers.all()
            if worker not in dead
        ),
        links=Links(unusual=_slow_links(args, workers, dead, _longest_s(costs))),
        staggered=args.optimizer == "staggered",
        horizon_steps=_horizon_steps(args.horizon),
        move_s=_move_s(args.move_cost, shape, costs),
        two_stages=not args.one_stage,
        may_move=not args.no_moves,
    )


class _Workers(NamedTuple):
    shape: Shape

    def all(self) -> Iterator[WorkerId]:
        for pipeline in range(self.shape.pipelines):
            for stage in range(self.shape.stages):
                yield WorkerId(pipeline, stage)

    def parse(self, option: str, text: str) -> WorkerId:
        last = WorkerId(self.shape.pipelines - 1, self.shape.last_stage)
        try:
            worker = parse_worker(text)
        except ValueError:
            worker = None
        if worker is None or worker.pipeline > last.pipeline or worker.stage > last.stage:
            raise ConfigError(
                f"{option} {text}: no such worker: expected pipeline.stage from 0.0 to {last}"
            )
        return worker


def _words(given: Sequence[str] | None) -> list[str]:
    """``--dead 1.3,2.0 0.1 --dead 1.2``: any mixture."""
    return [word.strip() for text in given or () for word in text.split(",")]


def _once(option: str, pairs: Iterator[tuple[WorkerId, float]]) -> dict[WorkerId, float]:
    found: dict[WorkerId, float] = {}
    for worker, speed in pairs:
        if worker in found:
            raise ConfigError(f"{option}: worker {worker} is given twice: expected it once")
        found[worker] = speed
    return found


def _slow(workers: _Workers, word: str) -> tuple[WorkerId, float]:
    name, _, value = word.partition("=")
    worker, speed = workers.parse("--slow", name.strip()), _number(value)
    if speed is None or not _LEAST_SPEED <= speed <= 1:
        raise ConfigError(
            f"--slow {word}: expected worker=speed with a speed from {_LEAST_SPEED:g} to 1 "
            "(1 = normal, 0.5 = takes twice as long); who does nothing belongs in --dead"
        )
    return worker, speed


def _slow_links(
    args: argparse.Namespace, workers: _Workers, dead: Mapping[WorkerId, float], longest_s: float
) -> dict[tuple[WorkerId, WorkerId], Link]:
    links: dict[tuple[WorkerId, WorkerId], Link] = {}
    for word in _words(args.slow_link):
        names, _, value = word.partition("=")
        ends = [workers.parse("--slow-link", name.strip()) for name in names.split("-")]
        delay_s = _number(value)
        if len(ends) != 2 or ends[0] == ends[1] or delay_s is None or delay_s < 0:
            raise ConfigError(
                f"--slow-link {word}: expected two workers and the delay in seconds, "
                "e.g. 0.1-0.2=0.5"
            )
        _require_ratio(f"--slow-link {word}", delay_s, longest_s)
        gone = next((end for end in ends if end in dead), None)
        if gone is not None:
            raise ConfigError(f"--slow-link {word}: {gone} is in --dead: expected live workers")
        one, other = sorted(ends)
        if (one, other) in links:
            raise ConfigError(f"--slow-link {word}: this link is given twice: expected it once")
        links[one, other] = Link(delay_s)
    return links


def _require_holders(shape: Shape, dead: Mapping[WorkerId, float]) -> None:
    for stage in range(shape.stages):
        holders = [WorkerId(pipeline, stage) for pipeline in range(shape.pipelines)]
        if all(worker in dead for worker in holders):
            first = " or ".join(map(str, holders[:3]))
            raise ConfigError(
                f"--dead: stage {stage} has no live holder, so nobody has its state: expected "
                f"at least one, e.g. {first}, to be alive"
            )


def _horizon_steps(given: int | None) -> int:
    if given is None:
        return Problem.horizon_steps
    if not 1 <= given <= _MOST_STEPS:
        raise ConfigError(f"--horizon {given}: expected 1 to {_MOST_STEPS:,} steps")
    return given


def _move_s(given: float | None, shape: Shape, costs: Costs) -> float:
    """By default a move costs two steps' work of one worker."""
    if given is None:
        each_s = sum(costs.forward_s[s] + costs.backward_s(s) for s in range(shape.stages))
        return 2 * shape.microbatches_per_pipeline * each_s / shape.stages
    if not 0 <= given <= _MOST_S:
        raise ConfigError(f"--move-cost {given:g}: expected 0 to {_MOST_S:g} seconds")
    return given


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
