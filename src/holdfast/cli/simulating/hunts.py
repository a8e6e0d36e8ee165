"""``--hunt``: seeds are shared out to processes, progress is shown, a failing world is printed."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.cli.simulating.asked import MOST_SEED
from holdfast.errors import ConfigError
from holdfast.simulator.hunt.hunting import SomeSeeds, WorldOutcome, hunted, judge
from holdfast.simulator.hunt.shrinking import shrunk
from holdfast.simulator.messages.scenario import parse_scenario

_CHUNK = 25  # seeds that a process takes at a time
_MOST_JOBS = 1024


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the control code among random faults")
    group.add_argument(
        "--hunt", type=int, metavar="SEEDS", help="run so many random worlds, from --seed on"
    )
    group.add_argument(
        "--jobs", type=int, metavar="N", help="processes that share them (default: 1)"
    )
    group.add_argument(
        "--world", type=Path, metavar="FILE", help="run one world, as --hunt has printed it"
    )


def run(args: argparse.Namespace) -> int:
    for name, value, least, most in (
        ("--hunt", args.hunt, 1, 10**9),
        ("--seed", args.seed, 0, MOST_SEED),
        ("--jobs", args.jobs, 1, _MOST_JOBS),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} {value}: expected {least} to {most}")
    failing, num_events = _hunt(args)
    if failing is None:
        _say(f"{args.hunt} seeds from {args.seed} on, {num_events} events: all is well")
        return 0
    small = shrunk(failing)
    _say(f"seed {failing.scenario.seed}: {failing.wrong}")
    _say(f"# {small.wrong}\n{small.scenario}")
    return 1


def _hunt(args: argparse.Namespace) -> tuple[WorldOutcome | None, int]:
    """The first that fails, by its seed; and all events."""
    num_seeds = num_events = 0
    try:
        with _shown(args.hunt) as advance:
            for found in _results(args):
                num_seeds, num_events = num_seeds + found.num_seeds, num_events + found.num_events
                advance(found.num_seeds)
                if found.failing is not None:
                    return found.failing, num_events
    except KeyboardInterrupt:
        _say(f"interrupted: {num_seeds} seeds from {args.seed} on, and all is well so far")
        raise
    return None, num_events


def _results(args: argparse.Namespace) -> Iterator[SomeSeeds]:
    end = args.seed + args.hunt
    chunks = [(first, min(_CHUNK, end - first)) for first in range(args.seed, end, _CHUNK)]
    if args.jobs == 1:
        yield from (hunted(*chunk) for chunk in chunks)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context, _ignore_interrupts) as pool:
        futures = [pool.submit(hunted, *chunk) for chunk in chunks]
        try:
            for future in futures:  # in order: the first that fails is always the same one
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal: the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _shown(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    if sys.stdout.isatty():
        columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as progress:
            task = progress.add_task("seeds", total=total)
            yield lambda number: progress.advance(task, number)
        return
    done, start_s = 0, time.monotonic()

    def advance(number: int) -> None:
        nonlocal done
        before, done = done * 10 // total, done + number
        if done * 10 // total > before:
            left_s = (time.monotonic() - start_s) * (total - done) / done
            _say(f"{done} of {total} seeds" + (f", {left_s:.0f} s left" if done < total else ""))

    yield advance


def replay(args: argparse.Namespace) -> int:
    try:
        text = args.world.read_text()
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(f"--world {args.world}: cannot be read ({why})") from why
    try:
        scenario = parse_scenario(text)
        scenario.config()
    except ConfigError as why:
        raise ConfigError(f"--world {args.world}: {why}") from why
    found = judge(scenario)
    _say(found.wrong or f"all is well after {found.took_s:.1f} virtual s: {found.ended}")
    return 1 if found.wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
