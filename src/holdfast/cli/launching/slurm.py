"""``holdfast slurm``: writes the batch script of a run on the nodes of a Slurm job."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from holdfast.cli import help_text
from holdfast.cli.passed_on import given_address, passes_on
from holdfast.errors import ConfigError
from holdfast.launch.slurm.script import SlurmJob, script_of

_EXAMPLES = (
    "holdfast slurm job.py --nodes 4 --spares 1 --output job.sbatch \\\n"
    "      -- --pipelines 4 --stages 2 --steps 1000",
    "holdfast slurm job.py --nodes 2 --slots 4 --sbatch time=8:00:00 --sbatch gpus-per-node=4",
)
_OPTION = re.compile(r"[a-z][a-z-]*(=\S+)?")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "slurm",
        help="write a batch script for Slurm",
        description="Write a commented batch script that trains a job on nodes of Slurm.\n"
        "What stands after -- is passed on to 'holdfast train'.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("job", metavar="JOB.py", help="the job file, as 'holdfast train' takes it")
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes to train on")
    parser.add_argument(
        "--spares", type=int, default=0, metavar="K", help="nodes beside them that wait (default 0)"
    )
    parser.add_argument(
        "--slots", type=int, metavar="N", help="workers on one node (default: one a core)"
    )
    parser.add_argument("--name", default="", help="of the job (default: that of the file)")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="seen by all nodes (default: runs/NAME-$SLURM_JOB_ID)"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of sbatch, e.g. partition=gpu; may be repeated",
    )
    parser.add_argument("--python", default=sys.executable, help="on the nodes (default: this one)")
    parser.add_argument("--output", metavar="FILE", help="default: printed")
    passes_on(parser, "train")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    name = args.name or re.sub(r"[^A-Za-z0-9_.-]", "-", Path(args.job.partition(":")[0]).stem)
    job = SlurmJob(
        job=args.job,
        nodes=args.nodes,
        python=args.python,
        written_by=f"Written by 'holdfast slurm {shlex.quote(args.job)}'.",
        spares=args.spares,
        slots=args.slots,
        name=name,
        run_dir=args.run_dir or f"runs/{name}-$SLURM_JOB_ID",
        options=args.sbatch,
        train=args.train,
        address=given_address(args.train),
    )
    if args.output is None:
        sys.stdout.write(script_of(job))
        return 0
    Path(args.output).write_text(script_of(job))
    sys.stdout.write(f"wrote {args.output}; submit it with: sbatch {shlex.quote(args.output)}\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    for flag, number, least in (
        ("--nodes", args.nodes, 1),
        ("--spares", args.spares, 0),
        ("--slots", args.slots, 1),
    ):
        if number is not None and number < least:
            raise ConfigError(f"{flag} {number}: expected at least {least}")
    for option in args.sbatch:
        if not _OPTION.fullmatch(option):
            raise ConfigError(f"--sbatch {option}: expected OPTION=VALUE, e.g. partition=gpu")
    if args.name and not _NAME.fullmatch(args.name):
        raise ConfigError(f"--name {args.name}: expected letters, digits, '.', '_' and '-'")
    for word in [args.job, args.python, args.run_dir or "", *args.train]:
        if "\n" in word:
            raise ConfigError(f"{word!r}: a script takes no line ends in a name")
