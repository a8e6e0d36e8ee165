"""The ``holdfast`` command: finds the sub-command, and turns errors into one line and a code."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import holdfast
from holdfast.cli import (
    demo,
    diagnose,
    export,
    help_text,
    plan,
    recovery_plan,
    train,
    watch,
    worker,
)
from holdfast.cli.cluster import agent, drain, standby
from holdfast.cli.flags import in_flags
from holdfast.cli.launching import k8s, preflight, slurm
from holdfast.cli.looking import events, trace
from holdfast.cli.simulating import simulate
from holdfast.cli.terminal.complaints import complain
from holdfast.errors import ConfigError, HoldfastError

_DESCRIPTION = """\
PyTorch training over D pipelines x S stages that goes on when workers die,
to the same result, bit for bit."""
_EXAMPLES = (
    "holdfast demo",
    "holdfast train examples/tiny_gpt.py --pipelines 2 --stages 2 --run-dir runs/a",
    "holdfast train --resume runs/a",
    "holdfast trace runs/a",
    "holdfast diagnose runs/a",
    "holdfast export runs/a --to safetensors",
    "holdfast plan --pipelines 2 --stages 4 --microbatches 16",
    "holdfast watch -- torchrun --nproc-per-node 4 train.py",
)
_COMMANDS = (
    *(demo, train, worker, plan, recovery_plan, trace, diagnose, events, export, watch),
    *(simulate, preflight, slurm, k8s, agent, drain, standby),
)
_MORE = "'holdfast COMMAND --help' shows the arguments of a command, with examples."


class _Parser(argparse.ArgumentParser):
    """Bad arguments are bad input like any other: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process
    parser = _Parser(prog="holdfast", description=_DESCRIPTION, **help_text.parts(_EXAMPLES, _MORE))
    parser.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    try:
        parsed = parser.parse_args(arguments)
        return int(parsed.run(parsed))
    except HoldfastError as why:
        complain(in_flags(why))
        return why.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # e.g. piped into head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as why:  # e.g. a path that no file system can hold
        complain(str(why))
        return ConfigError.exit_code
