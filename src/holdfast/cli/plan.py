"""``holdfast plan``: draw a step, with dead and slow workers if asked, and say how good it is."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from errno import EISDIR
from pathlib import Path

from rich.console import Console

from holdfast.cli import help_text
from holdfast.cli.plan_problem import (
    MemoryRoom,
    parse_costs,
    parse_limit_s,
    parse_machines,
    parse_memory,
    problem_of,
)
from holdfast.cli.report import placement as placement_report
from holdfast.cli.report import plan as plan_report
from holdfast.errors import ConfigError
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.placing import place
from holdfast.planner.plan import Plan
from holdfast.planner.planning import first_plan, refine
from holdfast.planner.problem import Problem
from holdfast.planner.prove.certificate import MOST_OPERATIONS
from holdfast.planner.question import shape_of
from holdfast.planner.schedules import NAMES, make
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.render import grid, svg
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import Pace, Timeline, bound, steady_period_s, timeline
from holdfast.schedule.validity import check, in_flight_peak

_EXAMPLES = (
    "holdfast plan --pipelines 2 --stages 4 --microbatches 16",
    "holdfast plan --pipelines 3 --stages 4 --microbatches 18 --dead 1.2 --slow 0.1=0.5",
    "holdfast plan --pipelines 1 --stages 4 --microbatches 8 --schedule 1f1b --svg plan.svg",
    "holdfast plan --pipelines 4 --stages 2 --microbatches 16 --machines a:2,b:2,c:4",
)
_PLANNED = "planned"
_PLANNED_ONLY = (
    *("dead", "slow", "slow_link", "first", "no_moves", "one_stage", "move_cost", "horizon"),
    *("compare", "certify", "machines"),
)
_MOST_LANES, _MOST_SVG_LANES = 64, 256
# What is worked out one by one for a picture; the solver's own limit on what it looks at.
_MOST_DRAWN = 400_000


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="plan a step around dead and slow workers, draw it and say how good it is",
        description="Show what each worker does in a step, with some of them dead or slow if you\n"
        "ask, how long the step takes and how far that is from the best possible.\n"
        "Nothing is run: operations take 1 s each, or what --costs says.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("--pipelines", type=int, required=True, help="copies of the model")
    parser.add_argument("--stages", type=int, required=True, help="parts the model is cut into")
    parser.add_argument(
        "--microbatches", type=int, required=True, help="of one step, over all pipelines"
    )
    _add_faults(parser.add_argument_group("who is missing or late"))
    _add_planning(parser.add_argument_group("how to plan"))
    parser.add_argument(
        "--machines",
        metavar="N|NAME:SLOTS,...",
        help="also place the workers, and say what the loss of each machine would cost: 4 equal "
        "machines, or e.g. a:2,b:2,c:4 with their slots",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw to this file")
    parser.add_argument("--width", type=int, help="characters a line (default: the terminal's)")
    parser.set_defaults(run=run)


def _add_faults(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--dead", nargs="+", action="extend", metavar="W", help="workers, e.g. 1.3 2.0 or 1.3,2.0"
    )
    group.add_argument(
        "--slow",
        nargs="+",
        action="extend",
        metavar="W=SPEED",
        help="workers and their speed, e.g. 2.5=0.5: takes twice as long",
    )
    group.add_argument(
        "--slow-link",
        nargs="+",
        action="extend",
        metavar="A-B=SECONDS",
        help="delay of a tensor between two workers, both ways, instead of the usual one, "
        "e.g. 0.1-0.2=0.5",
    )


def _add_planning(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--schedule",
        choices=(_PLANNED, *NAMES),
        default=_PLANNED,
        help="planned (the default), or a schedule by name for a step in which nobody is missing",
    )
    group.add_argument(
        "--memory",
        metavar="LIMIT",
        help="micro-batches in flight a worker and stage it holds: a whole number such as 16, or a "
        "multiple of the number of stages, with a point or an S: 2.0 or 2S (default: 2S)",
    )
    group.add_argument(
        "--costs",
        default="",
        help="durations in seconds, e.g. 'F=1,B=1,W=1,BW=2,R=0,link=0' (these are the defaults; "
        "BW is B+W unless given)",
    )
    group.add_argument(
        "--optimizer",
        choices=("staggered", "global"),
        default="staggered",
        help="whether a stage steps when its own gradients are there, or all wait for all",
    )
    group.add_argument(
        "--first", action="store_true", help="the plan there is at once, not refined"
    )
    group.add_argument(
        "--no-moves", action="store_true", help="nobody copies a stage, not even as a second one"
    )
    group.add_argument("--one-stage", action="store_true", help="nobody holds a second stage")
    group.add_argument(
        "--move-cost",
        type=float,
        metavar="SECONDS",
        help="of training, to give a worker another stage (default: the work of two steps)",
    )
    group.add_argument(
        "--horizon",
        type=int,
        metavar="STEPS",
        help="in which a move must pay, unless a stage has only one holder left (default: 1000)",
    )
    group.add_argument("--compare", action="store_true", help="with published policies and bounds")
    group.add_argument(
        "--certify",
        metavar="TIME",
        help="look for the optimum with an exact solver, for at most 30s, 30 or 2m; small cases",
    )


def run(args: argparse.Namespace) -> int:
    shape = shape_of(args.pipelines, args.stages, args.microbatches)
    costs = parse_costs(args.costs, args.stages)
    room = parse_memory(args.memory, args.stages)
    width = shutil.get_terminal_size((120, 24)).columns if args.width is None else args.width
    if width < 20:
        raise ConfigError(f"--width {width}: expected at least 20 characters")
    if args.schedule == _PLANNED:
        _run_planned(args, problem_of(args, shape, costs, room), room, width)
    else:
        _run_fixed(args, shape, costs, room.num_microbatches, width)
    return 0


def _run_planned(args: argparse.Namespace, problem: Problem, room: MemoryRoom, width: int) -> None:
    limit_s = None if args.certify is None else parse_limit_s(args.certify)
    if limit_s is not None and _num_operations(problem.shape) > MOST_OPERATIONS:
        raise ConfigError(
            f"--certify {args.certify}: the step has {_num_operations(problem.shape):,} "
            f"operations: expected at most {MOST_OPERATIONS:,}; ask for fewer micro-batches, "
            "stages or pipelines"
        )
    if args.svg is not None:
        _require_drawable(problem.shape, f"--svg {args.svg}")
        _require_writable(args.svg)
    placement = None if args.machines is None else _placed(args.machines, problem.shape)
    plan = _plan(problem, only_first=args.first)
    times = None
    if _num_drawn(problem.shape) <= _MOST_DRAWN:
        schedule = plan.schedule()
        times = timeline(
            schedule,
            problem.costs,
            staggered=problem.staggered,
            pace=Pace({m.worker: m.speed for m in problem.members}, problem.hop_s),
            period_s=plan.period_s,
        )
        _draw(args, schedule, times, width)
    else:
        _say([f"not drawn: {_too_many(problem.shape)}"])
    _say(["", *plan_report.report(plan, room, times, width)])
    if limit_s is not None:
        _say(plan_report.certificate(plan, limit_s, width))
    if args.compare:
        _say(["", *plan_report.comparison(plan)])
    if placement is not None:
        lines = placement_report.report(plan, placement, refined=not args.first, width=width)
        _say(["", *lines])


def _placed(machines: str, shape: Shape) -> MachinePlacement:
    found = parse_machines(machines, shape.pipelines * shape.stages)
    return place(shape.pipelines, shape.stages, found)


def _plan(problem: Problem, *, only_first: bool) -> Plan:
    """The last plan; on a terminal a line tells how far it is, and goes again."""
    if only_first:
        return first_plan(problem)
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        *_, last = refine(problem)
        return last
    with console.status("planning") as status:
        for number, last in enumerate(refine(problem), 1):
            status.update(f"planning: {last.period_s:.6g} s a step, plan {number}")
    return last


def _run_fixed(
    args: argparse.Namespace, shape: Shape, costs: Costs, memory: int, width: int
) -> None:
    for option in _PLANNED_ONLY:
        given = getattr(args, option)
        if given is not None and given is not False:  # 0 is given too
            raise ConfigError(
                f"--schedule {args.schedule} is for a step in which nobody is missing: expected "
                f"no --{option.replace('_', '-')} with it; leave out --schedule to have one planned"
            )
    _require_drawable(shape, f"--schedule {args.schedule}")
    if args.svg is not None:
        _require_writable(args.svg)
    staggered = args.optimizer == "staggered"
    schedule = make(args.schedule, shape, costs, memory, staggered=staggered)
    check(schedule, memory)
    times = timeline(schedule, costs, staggered=staggered)
    _draw(args, schedule, times, width)
    _say(["", *_summary(args.schedule, schedule, times, costs, memory, staggered)])


def _num_operations(shape: Shape) -> int:
    return 3 * shape.stages * shape.microbatches


def _num_drawn(shape: Shape) -> int:
    """Operations, and messages of the reductions from every holder of a stage to every other."""
    return _num_operations(shape) + shape.stages * shape.pipelines**2


def _too_many(shape: Shape) -> str:
    return (
        f"the step has {_num_drawn(shape):,} operations and messages: expected at most "
        f"{_MOST_DRAWN:,} to draw"
    )


def _require_drawable(shape: Shape, what: str) -> None:
    if _num_drawn(shape) > _MOST_DRAWN:
        raise ConfigError(
            f"{what}: {_too_many(shape)}; ask for fewer micro-batches, stages or pipelines"
        )


def _draw(args: argparse.Namespace, schedule: Schedule, times: Timeline, width: int) -> None:
    num_lanes = len(schedule.lanes)
    if args.svg is not None:
        _write_atomically(args.svg, svg(schedule, times, most_lanes=_MOST_SVG_LANES))
    sys.stdout.write(grid(schedule, times, width=width, most_lanes=_MOST_LANES))
    if num_lanes > _MOST_LANES:
        _say([f"the first {_MOST_LANES} lanes; {num_lanes - _MOST_LANES} more are left out"])
    if args.svg is not None and num_lanes > _MOST_SVG_LANES:
        left_out = num_lanes - _MOST_SVG_LANES
        _say([f"{args.svg}: the first {_MOST_SVG_LANES} lanes; {left_out} more are left out"])


def _say(lines: Iterable[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _summary(
    name: str, schedule: Schedule, times: Timeline, costs: Costs, memory: int, staggered: bool
) -> Iterator[str]:
    shape = schedule.shape
    best = bound(shape, costs, memory, staggered=staggered)
    plain = one_f_one_b(shape, memory)
    plain_s = steady_period_s(plain, costs, staggered=staggered)
    peaks = {worker: in_flight_peak(lane) for worker, lane in schedule.lanes.items()}
    highest = max(peaks, key=lambda worker: peaks[worker])
    first = [peaks[worker] for worker in peaks if worker.pipeline == 0]
    yield f"{name}, {shape.pipelines} x {shape.stages} workers, {shape.microbatches} micro-batches"
    yield f"period          {times.period_s:g} s a step"
    yield f"bound           {best.period_s:g} s, set by {best.reason}"
    yield f"period / bound  {times.period_s / best.period_s:.3f}"
    yield f"1f1b            {plain_s:g} s, {plain_s / times.period_s:.3f} x this period"
    yield f"idle            {100 * times.bubble_share:.1f} % of the workers' time"
    yield (
        f"in flight       at most {peaks[highest]} micro-batches (worker {highest}), "
        f"limit {memory}; by stage {' '.join(map(str, first))}"
    )


def _require_writable(path: Path) -> None:
    """Said at once, not after half a minute of planning."""
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if path.exists() and not path.is_file():
            raise ConfigError(f"--svg {path}: not a regular file: expected a file to write or make")
        _temporary(path).touch()
        _temporary(path).unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _write_atomically(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file, a failure leaves the old one."""
    path = path.resolve()  # a link stays a link, its target is written
    temporary = _temporary(path)
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}.tmp"


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--svg {path}: cannot be written: {error.strerror}")
