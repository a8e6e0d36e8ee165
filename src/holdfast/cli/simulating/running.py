"""``holdfast simulate`` with intervals, from its words to the answers on screen and on disk."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.baselines.policies.catalogue import parse_constants
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.cli.simulating.asked import (
    asked_job,
    asked_world,
    other_layouts,
    require_numbers,
)
from holdfast.cli.simulating.resolutions import by_messages, names_of
from holdfast.cli.simulating.tables import candidates_table, outcomes_table
from holdfast.errors import ConfigError
from holdfast.observability.jsonfile import encode
from holdfast.simulator.answers.page import page
from holdfast.simulator.answers.pictures import FORMATS, drawn
from holdfast.simulator.answers.values import all_values, candidate_values, world_values
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.intervals.optimising import optimised, stage_counts
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.durations import parse_duration_s
from holdfast.simulator.worlds.files import written
from holdfast.simulator.worlds.world import World


def run(args: argparse.Namespace) -> int:
    require_numbers(args)
    boot_s = parse_duration_s("--boot", args.boot, zero=True)
    _require_form(args.picture)
    names = names_of(args)
    job = asked_job(args)
    world = asked_world(args, job.num_workers)
    if args.export is not None:
        _write("--export", args.export, written(world).encode())
    constants = parse_constants(args.constant)
    if args.optimise:
        return _optimise(args, world, job, boot_s, constants.get("holdfast", {}))
    with _progress(len(names) + (args.resolution == "messages")) as told:
        outcomes = by_messages(args, world, job, boot_s, told)
        outcomes += compare_policies(
            world, job, names, constants=constants, boot_s=boot_s, progress=told
        )
    _answer(args, world, job, outcomes)
    return 0


def _require_form(picture: Path | None) -> None:
    if picture is not None and picture.suffix.lstrip(".") not in FORMATS:
        raise ConfigError(f"--picture {picture}: expected a file that ends in .svg or .png")


def _answer(
    args: argparse.Namespace, world: World, job: JobCosts, outcomes: list[PolicyOutcome]
) -> None:
    values = all_values(world, job, outcomes, args.price)
    if args.picture is not None:
        form = args.picture.suffix.lstrip(".")
        _write("--picture", args.picture, drawn(world, outcomes, form))
    if args.html is not None:
        text = page(values, outcomes, drawn(world, outcomes, "svg"))
        _write("--html", args.html, text.encode())
    if args.json:
        sys.stdout.write(encode(values, indent=2) + "\n")
        return
    Console().print(outcomes_table(values, outcomes, args.price))


def _optimise(
    args: argparse.Namespace,
    world: World,
    job: JobCosts,
    boot_s: float,
    constants: Mapping[str, float],
) -> int:
    stages = stage_counts(job.layers, world.num_workers)
    batch = job.shape.microbatches
    with _progress(1) as told:
        found = optimised(
            world,
            other_layouts(args, job),
            stages,
            constants=constants,
            boot_s=boot_s,
            progress=told,
        )
    if args.json:
        rows = [candidate_values(candidate, args.price) for candidate in found]
        values = {"world": world_values(world), "batch": batch, "candidates": rows}
        sys.stdout.write(encode(values, indent=2) + "\n")
        return 0
    Console().print(candidates_table(world, found, args.price))
    return 0


def _write(flag: str, path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as why:
        raise ConfigError(f"{flag} {path}: cannot be written: {why.strerror}") from why


@contextmanager
def _progress(parts: int) -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal's stderr; elsewhere nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:12}"), BarColumn(), TimeRemainingColumn())
    done: dict[str, None] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=parts)

        def told(name: str, share: float) -> None:
            before = len([each for each in done if each != name]) if parts > 1 else 0
            done[name] = None
            bar.update(task, description=name, completed=before + share)

        yield told
