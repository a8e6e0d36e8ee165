"""``holdfast diagnose``: why a job was slow, from a recorded trace or the directory of a run."""

import argparse
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.api.diagnosing import UNITS, diagnose
from holdfast.cli import help_text
from holdfast.cli.report import run_diagnosis, trace_diagnosis
from holdfast.cli.terminal.complaints import complain
from holdfast.detection.live.recorded import RunOutcome
from holdfast.detection.trace.trace import MOST, TraceLayout
from holdfast.errors import ConfigError
from holdfast.observability.jsonfile import encode

_EXAMPLES = (
    "holdfast diagnose runs/a",
    "holdfast diagnose trace.parquet --meta trace.yaml --unit us",
    "holdfast diagnose runs/a --json",
)
QUIET_S = 2.0  # shorter work says nothing of its progress
_META = ("dp_size", "pp_size")  # of the keys in a trace's description, those that must be there


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "diagnose",
        help="say why a job was slow: who, since when, how much",
        description="Say why a job was slow: which worker, link or stage, since when, how much.\n"
        "WHAT is the directory of a Holdfast run, or a trace of operations (Parquet)\n"
        "that was recorded in any pipeline-parallel job.",
        **help_text.parts(_EXAMPLES),
    )
    parser.add_argument("what", type=Path, metavar="WHAT", help="TRACE.parquet, or a directory")
    parser.add_argument(
        "--meta",
        type=Path,
        metavar="FILE",
        help="the layout of the traced job: lines dp_size: N, pp_size: N (default: as in the rows)",
    )
    parser.add_argument(
        "--unit", choices=UNITS, default="s", help="of the times in the trace (default: s)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    what: Path = args.what
    if what.is_dir() and args.meta is not None:
        raise ConfigError(f"--meta {args.meta}: describes a trace, but {what} is a directory")
    layout = None if args.meta is None or not what.exists() else read_layout(args.meta)
    with _progress() as doing:
        outcome = diagnose(what, layout=layout, unit=args.unit, doing=doing)
    if isinstance(outcome, RunOutcome):
        values, lines = run_diagnosis.as_json(outcome), run_diagnosis.report(outcome)
    else:
        values, lines = trace_diagnosis.as_json(outcome), trace_diagnosis.report(outcome)
    _print(values, lines, as_json=args.json)
    return 0


def _print(values: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    sys.stdout.write(encode(values, indent=2) + "\n" if as_json else "\n".join(lines) + "\n")


def read_layout(path: Path) -> TraceLayout:
    """Lines ``key: value``; only whole numbers are looked at."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(f"--meta {path}: cannot be read: {why}") from why
    pairs = [line.partition(":") for line in text.splitlines()]
    found = {key.strip(): value.strip() for key, _, value in pairs}
    missing = [key for key in _META if key not in found]
    if missing:
        raise ConfigError(
            f"--meta {path} lacks {' and '.join(missing)}: expected lines such as 'dp_size: 4' "
            "(pipelines) and 'pp_size: 2' (stages)"
        )
    sizes = [found.get(key, "1") for key in (*_META, "vpp_size")]
    for key, value in zip((*_META, "vpp_size"), sizes, strict=True):
        is_short = value.isascii() and value.isdecimal() and len(value) <= len(str(MOST))
        if not (is_short and 0 < int(value) <= MOST):
            raise ConfigError(
                f"--meta {path}: {key}: {value[:40]!r} is not a whole number from 1 to {MOST}"
            )
    return TraceLayout(*(int(value) for value in sizes))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Tells what is being done, if it takes long."""
    now, done = ["starting"], threading.Event()

    def tell() -> None:
        while not done.wait(QUIET_S):
            complain(f"{now[0]} ...")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield lambda what: now.__setitem__(0, what)
    finally:
        done.set()
        teller.join()
