"""The words of ``holdfast simulate``: which world, which job, which answers."""

import argparse
from pathlib import Path

from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.cli.simulating.resolutions import add_flag
from holdfast.simulator.costs.presets import PRESETS
from holdfast.simulator.worlds.files import PACKAGED
from holdfast.simulator.worlds.generate import KINDS

# A flag that is not given is None: ``no_effect`` has what is usual then.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    world = parser.add_argument_group("the world")
    _world(world)
    add_flag(world)
    _job(parser.add_argument_group("the job"))
    _policies(parser.add_argument_group("policies"))
    _answers(parser.add_argument_group("answers"))


def _world(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--trace", metavar="NAME", help=f"{', '.join(PACKAGED)}, or a CSV file with a trace"
    )
    group.add_argument(
        "--mtbf", metavar="TIME", help="a failure somewhere in the cluster every TIME, e.g. 2h"
    )
    group.add_argument("--failures", choices=KINDS, help="how they come (default: poisson)")
    group.add_argument("--repair", metavar="TIME", help="until a machine is back (default: 20m)")
    group.add_argument(
        "--notice", metavar="TIME", help="so long before a loss it is known (default: 0)"
    )
    group.add_argument(
        "--rack", type=int, metavar="N", help="machines behind one switch (default: 8)"
    )
    group.add_argument(
        "--maintenance", metavar="TIME", help="every TIME the next rack is away for an hour"
    )
    group.add_argument(
        "--slow", action="store_true", help="machines also become slow, as published"
    )
    group.add_argument(
        "--machines",
        type=int,
        metavar="N",
        help="a trace is scaled to so many (default: the job's)",
    )
    group.add_argument("--workers-a-machine", type=int, metavar="N", help="default: 1")
    group.add_argument(
        "--days", type=float, metavar="N", help="how long (default: 1, or all of a trace)"
    )
    group.add_argument(
        "--boot", metavar="TIME", help="until a new machine is of use (default: 60s)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="default: 0")
    group.add_argument("--export", type=Path, metavar="FILE", help="write the world as CSV")


def _job(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--model", metavar="NAME", help=f"{', '.join(PRESETS)} (default: 6.7b)")
    group.add_argument(
        "--from",
        dest="from_run",
        type=Path,
        metavar="RUN_DIR",
        help="costs that a run has measured",
    )
    group.add_argument(
        "--costs", metavar="F=S,...", help="seconds of F, B, W, BW, R and link, for all stages"
    )
    group.add_argument("--pipelines", type=int, metavar="D")
    group.add_argument("--stages", type=int, metavar="S")
    group.add_argument(
        "--microbatches", type=int, metavar="M", help="a pipeline and step (default: 2 S)"
    )
    group.add_argument("--flops", type=float, metavar="N", help="of a GPU (default: 312e12)")
    group.add_argument("--utilisation", type=float, metavar="X", help="of them (default: 0.45)")
    group.add_argument("--gpu-memory", type=float, metavar="GB", help="default: 80")
    group.add_argument("--link", type=float, metavar="GB/S", help="of a GPU (default: 12.5)")


def _policies(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--policies", metavar="NAMES", help=f"{','.join(BY_NAME)} (default: all of them)"
    )
    group.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="POLICY.NAME=X",
        help="change what a policy is taken to cost, e.g. oobleck.regroup_s=83",
    )
    group.add_argument(
        "--optimise", action="store_true", help="find the best D x S, spares and checkpoints"
    )


def _answers(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--price", type=float, metavar="X", help="of a GPU and hour (default: 2)")
    group.add_argument("--json", action="store_true", help="print everything as JSON")
    group.add_argument("--picture", type=Path, metavar="FILE", help="a .svg or .png")
    group.add_argument("--html", type=Path, metavar="FILE", help="one page with everything in it")
