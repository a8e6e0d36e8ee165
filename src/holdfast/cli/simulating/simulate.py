"""``holdfast simulate``: whole runs in virtual time, without a model or a cluster."""

import argparse

from holdfast.cli import help_text
from holdfast.cli.simulating import arguments, hunts, running
from holdfast.cli.simulating.no_effect import settled

EXAMPLES = (
    "holdfast simulate --model 6.7b --pipelines 16 --stages 8 --mtbf 2h --repair 20m --days 30",
    "holdfast simulate --trace aws-p3 --model 350m --pipelines 6 --stages 4 --html page.html",
    "holdfast simulate --hunt 10000 --seed 1 --jobs 2",
    "holdfast simulate --world tests/worlds/an_earlier_life.txt",
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="a cluster's failures in virtual time: which layout, what it costs, who does better",
        description="Simulate days of training on a cluster whose machines fail, with Holdfast\n"
        "and with published systems. Or, with --hunt, run the real control code among simulated\n"
        "workers, networks and disks, and look for what must not happen.",
        **help_text.parts(EXAMPLES),
    )
    arguments.add_arguments(parser)
    hunts.add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    args = settled(args)
    if args.world is not None:
        return hunts.replay(args)
    if args.hunt is not None:
        return hunts.run(args)
    return running.run(args)
