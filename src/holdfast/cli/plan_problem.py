"""What the words of ``holdfast plan`` ask for, as numbers. Plans nothing."""

import argparse
import re
from collections.abc import Sequence
from math import floor, isfinite
from typing import NamedTuple

from holdfast.errors import ConfigError
from holdfast.planner.place.machine import Machine, equal_machines
from holdfast.planner.problem import Problem
from holdfast.planner.question import COST_FIELDS, MOST_MICROBATCHES_HELD, costs_of
from holdfast.planner.question import problem_of as problem_from
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import default_memory
from holdfast.schedule.operation import Shape

_MOST_CERTIFY_S = 24 * 3600
_SPEED = (
    "worker=speed with a speed from 1e-06 to 1 (1 = normal, 0.5 = takes twice as long); "
    "who does nothing belongs in --dead"
)
_DELAY = "two workers and the delay in seconds, e.g. 0.1-0.2=0.5"


class MemoryRoom(NamedTuple):
    """Micro-batches in flight a worker, and how that was said."""

    num_microbatches: int
    words: str


def parse_costs(text: str, stages: int) -> Costs:
    """``F=1,B=1.2,link=0.1`` for every stage alike; what is left out keeps its default."""
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            seconds = float(value)
        except ValueError:
            name = ""
        if name not in COST_FIELDS or name in given:
            raise ConfigError(
                f"--costs: {part!r}: expected name=seconds, each name once, "
                f"with names {', '.join(COST_FIELDS)}"
            )
        given[name] = seconds
    return costs_of(given, stages)


def parse_memory(text: str | None, stages: int) -> MemoryRoom:
    """``16``: micro-batches. ``2.0`` or ``2S``: times the number of stages."""
    if text is None:
        return MemoryRoom(default_memory(stages), "2 x stages")
    if re.fullmatch(r"[0-9]{1,12}", text):
        room = MemoryRoom(int(text), f"--memory {text}")
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
        room = MemoryRoom(
            floor(factor * stages + 1e-9), f"--memory {text}: {factor:g} x {stages} stages"
        )
    if not 1 <= room.num_microbatches <= MOST_MICROBATCHES_HELD:
        raise ConfigError(
            f"--memory {text} = {room.num_microbatches} micro-batches in flight a worker: expected "
            f"at least 1 for any schedule to fit, and at most {MOST_MICROBATCHES_HELD:,}; "
            f"{default_memory(stages)} let most plans reach their bound"
        )
    return room


def parse_machines(text: str, num_workers: int) -> tuple[Machine, ...]:
    """``4``: so many equal ones. ``a:2,b:4``: names and slots."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return equal_machines(int(text), num_workers)
    found = []
    for word in text.split(","):
        name, colon, slots = word.strip().rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,9}", slots):
            raise ConfigError(
                f"--machines {text}: {word.strip()!r}: expected a number of equal machines, e.g. "
                "4, or names with their slots, e.g. a:2,b:4"
            )
        found.append(Machine(name, int(slots)))
    return tuple(found)


def parse_limit_s(text: str) -> float:
    """``30s``, ``30`` or ``2m``."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|)", text)
    limit_s = float(found[1]) * (60 if found[2] == "m" else 1) if found else 0.0
    if not 0 < limit_s <= _MOST_CERTIFY_S:
        raise ConfigError(f"--certify {text}: expected a time up to 24 hours, e.g. 30s, 30 or 2m")
    return limit_s


def problem_of(args: argparse.Namespace, shape: Shape, costs: Costs, room: MemoryRoom) -> Problem:
    return problem_from(
        shape,
        costs,
        memory=room.num_microbatches,
        dead=_words(args.dead),
        slow=_numbers("--slow", args.slow, _SPEED),
        slow_links=_numbers("--slow-link", args.slow_link, _DELAY),
        optimizer=args.optimizer,
        horizon=args.horizon,
        move_cost=args.move_cost,
        moves=not args.no_moves,
        second_stages=not args.one_stage,
    )


def _words(given: Sequence[str] | None) -> list[str]:
    """``--dead 1.3,2.0 0.1 --dead 1.2``: any mixture."""
    return [word.strip() for text in given or () for word in text.split(",")]


def _numbers(option: str, given: Sequence[str] | None, expected: str) -> list[tuple[str, float]]:
    """``--slow 0.1=0.5,1.0=0.8``: each name with its number."""
    found = []
    for word in _words(given):
        name, _, value = word.partition("=")
        number = _number(value)
        if number is None:
            raise ConfigError(f"{option} {word}: expected {expected}")
        found.append((name.strip(), number))
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None
