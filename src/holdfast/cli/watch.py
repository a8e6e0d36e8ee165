"""``holdfast watch``: runs any torch.distributed job unchanged and says which rank is slow."""

import argparse
import contextlib
import os
import sys
from pathlib import Path

from holdfast.cli import help_text
from holdfast.cli.terminal.signals import forwarded
from holdfast.errors import ConfigError
from holdfast.host import instruction_set
from holdfast.observability.jsonfile import write_json
from holdfast.watch.findings import WatchReport
from holdfast.watch.keeping import keep_traceback
from holdfast.watch.watching import watch

_EXAMPLES = (
    "holdfast watch -- torchrun --nproc-per-node 4 train.py",
    "holdfast watch --report slow.json -- python train.py --lr 0.1",
)
_CODES = {
    "COMMAND's own": "it ran",
    "128 + n": "signal n ended it",
    "127, 126": "there is no such command, or it cannot be run",
    "2": "bad input: no command, or a report that cannot be written",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "watch",
        help="run any torch.distributed job and say which rank is slow",
        usage="holdfast watch [-h] [-v] [--report FILE] -- COMMAND ...",
        description="Run COMMAND unchanged, watch the calls of torch.distributed in all Python\n"
        "processes it starts here, and say on stderr which rank is slow and since when.",
        **help_text.parts(_EXAMPLES, codes=_CODES),
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say how it is known, too (the report has it)"
    )
    parser.add_argument("--report", metavar="FILE", help="write the findings as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    words: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise ConfigError(
            "watch: no command; put it after --, e.g. "
            "holdfast watch -- torchrun --nproc-per-node 4 train.py"
        )
    report = None if args.report is None else _writable(args.report)
    instruction_set.prepare(_say)
    findings = WatchReport(_say, verbose=args.verbose)
    code = watch(words, findings, forwarded)
    try:
        for line in [*findings.remarks(), findings.summary()]:
            _say(line)
        if report is not None:
            _write(report, findings.report(words, code))
    except Exception as why:  # the job has run: its exit code stands
        _say(f"an error in Holdfast, see {keep_traceback(why)}: {why!r}")
    return code


def _writable(text: str) -> Path:
    """Before the command runs: a report that cannot be written would be lost after hours."""
    path = Path(text)
    if not path.name or not path.parent.is_dir():
        raise ConfigError(f"--report {text!r}: no such directory; choose another file")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--report {text!r}: is no file; choose another name")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--report {text!r}: cannot be written; choose another place")
    return path


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed: the job goes on
        sys.stderr.write(f"holdfast watch: {text}\n")
        sys.stderr.flush()


def _write(path: Path, report: dict[str, object]) -> None:
    try:
        write_json(path, report, indent=2)
    except OSError as why:  # the job has run: its exit code stands
        _say(f"cannot write the report to {path}: {why}")
