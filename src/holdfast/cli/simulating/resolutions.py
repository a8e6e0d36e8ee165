"""``--resolution messages``: Holdfast's real control code in the world, beside its intervals."""

import argparse
from collections.abc import Callable

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.cli.simulating.asked import asked_policies
from holdfast.errors import ConfigError
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.simulator.by_messages.lived import live_through
from holdfast.simulator.costs.measured_times import measured_times
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.world import World

RESOLUTIONS = ("intervals", "messages")


def add_flag(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--resolution",
        choices=RESOLUTIONS,
        help="messages: also run the real control code message by message, at most 64 workers; "
        "other policies only if --policies names them (default: intervals)",
    )


def names_of(args: argparse.Namespace) -> list[str]:
    """Policies that are simulated by intervals."""
    if args.resolution == "messages" and args.optimise:
        raise ConfigError("--resolution messages: expected it without --optimise")
    if args.resolution == "messages" and args.policies is None:
        return ["holdfast"]
    return asked_policies(args.policies)


def by_messages(
    args: argparse.Namespace,
    world: World,
    job: JobCosts,
    boot_s: float,
    told: Callable[[str, float], None],
) -> list[PolicyOutcome]:
    if args.resolution != "messages":
        return []
    measured = None
    if args.from_run is not None:
        measured = measured_times(str(args.from_run), read_events(args.from_run / EVENTS_FILE))

    def progress(share: float) -> None:
        told("messages", share)

    found = live_through(
        world, job, measured=measured, boot_s=boot_s, seed=args.seed, progress=progress
    )
    return [found]
