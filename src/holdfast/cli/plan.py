"""``holdfast plan``: draw the schedule of a step and say how near its period is to the bound."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import NAMES, default_memory, make
from holdfast.schedule.operation import Shape
from holdfast.schedule.render import grid, svg
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import Timeline, bound, steady_period_s, timeline
from holdfast.schedule.validity import check, in_flight_peak

_COST_FIELDS = {
    "F": "forward_s",
    "B": "input_s",
    "W": "weight_s",
    "BW": "fused_s",
    "R": "step_s",
    "link": "link_s",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "plan", help="draw the schedule of a step and say how good it is"
    )
    parser.add_argument("--pipelines", type=int, required=True, help="copies of the model")
    parser.add_argument("--stages", type=int, required=True, help="parts the model is cut into")
    parser.add_argument(
        "--microbatches", type=int, required=True, help="of one step, over all pipelines"
    )
    parser.add_argument("--schedule", choices=NAMES, default="zero-bubble")
    parser.add_argument(
        "--memory", type=int, help="micro-batches in flight a worker (default: 2 x stages)"
    )
    parser.add_argument(
        "--costs",
        default="",
        help="durations in seconds, e.g. 'F=1,B=1,W=1,BW=2,R=0,link=0' (these are the defaults; "
        "BW is B+W unless given)",
    )
    parser.add_argument("--optimizer", choices=("staggered", "global"), default="staggered")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw to this file")
    parser.add_argument("--width", type=int, help="characters a line (default: the terminal's)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    shape = Shape(args.pipelines, args.stages, args.microbatches)
    costs = parse_costs(args.costs, args.stages)
    memory = default_memory(args.stages) if args.memory is None else args.memory
    width = shutil.get_terminal_size((120, 24)).columns if args.width is None else args.width
    if width < 20:
        raise ConfigError(f"--width {width}: expected at least 20 characters")
    staggered = args.optimizer == "staggered"
    schedule = make(args.schedule, shape, costs, memory, staggered=staggered)
    check(schedule, memory)
    times = timeline(schedule, costs, staggered=staggered)
    if args.svg is not None:
        _write_atomically(args.svg, svg(schedule, times))
    sys.stdout.write(grid(schedule, times, width=width))
    lines = _summary(args.schedule, schedule, times, costs, memory, staggered)
    sys.stdout.write("\n".join(["", *lines]) + "\n")
    return 0


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
        given[field] = seconds
    return Costs.uniform(stages, **given)


def _summary(
    name: str, schedule: Schedule, times: Timeline, costs: Costs, memory: int, staggered: bool
) -> Iterator[str]:
    shape = schedule.shape
    best = bound(shape, costs, memory, staggered=staggered)
    plain = make("1f1b", shape, costs, memory)
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


def _write_atomically(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file, a failure leaves the old one."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--svg {path}: cannot be written: {error.strerror}") from error
