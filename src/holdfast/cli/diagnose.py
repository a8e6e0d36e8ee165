"""``holdfast diagnose``: why a job was slow, from a recorded trace or from the directory of a run.

Reads files and prints; how causes are found is in ``detection``.
"""

import argparse
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.cli import diagnose_report, diagnose_run, diagnose_run_report, help_text
from holdfast.detection.causes import find_causes
from holdfast.detection.trace import MOST, OPTIONAL, WANTED, Layout, Trace, trace_of
from holdfast.detection.trace_graph import graph_of
from holdfast.detection.whatif import what_if
from holdfast.errors import ConfigError
from holdfast.observability.events import EVENTS_FILE, read_events
from holdfast.observability.jsonfile import encode

_EXAMPLES = (
    "holdfast diagnose runs/a",
    "holdfast diagnose trace.parquet --meta trace.yaml --unit us",
    "holdfast diagnose runs/a --json",
)
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
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
        "--unit", choices=_UNITS, default="s", help="of the times in the trace (default: s)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    what: Path = args.what
    if not what.exists():
        raise ConfigError(f"{what}: no such file or directory; expected a trace or a run")
    if what.is_dir():
        if args.meta is not None:
            raise ConfigError(f"--meta {args.meta}: describes a trace, but {what} is a directory")
        _print(*_run(what), as_json=args.json)
    else:
        layout = None if args.meta is None else read_layout(args.meta)
        _print(*_trace(what, layout, _UNITS[args.unit]), as_json=args.json)
    return 0


def _print(values: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    sys.stdout.write(encode(values, indent=2) + "\n" if as_json else "\n".join(lines) + "\n")


def _trace(path: Path, layout: Layout | None, unit_s: float) -> tuple[dict[str, Any], list[str]]:
    with _progress() as doing:
        doing[0] = f"reading {path}"
        trace = read_trace(path, layout, unit_s)
        doing[0] = f"finding the order of {trace.size} operations"
        graph = graph_of(trace)
        doing[0] = "replaying it with each worker alone as recorded"
        numbers = what_if(graph)
        doing[0] = "looking for causes"
        found = find_causes(graph)
    outcome = diagnose_report.Outcome(str(path), trace, numbers, found)
    return diagnose_report.as_json(outcome), list(diagnose_report.report(outcome))


def _run(run_dir: Path) -> tuple[dict[str, Any], list[str]]:
    path = run_dir / EVENTS_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} holds no {EVENTS_FILE}: expected the directory of a run")
    with _progress() as doing:
        doing[0] = f"reading {path}"
        events = read_events(path)
        doing[0] = f"looking at {len(events)} events"
        outcome = diagnose_run.look(str(run_dir), events)
    return diagnose_run_report.as_json(outcome), list(diagnose_run_report.report(outcome))


def read_trace(path: Path, layout: Layout | None = None, unit_s: float = 1.0) -> Trace:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            "reading Parquet needs pyarrow, which is not installed: pip install 'holdfast[traces]'"
        ) from None
    try:
        names = [name for name in parquet.read_schema(path).names if name in (*WANTED, *OPTIONAL)]
        read = parquet.read_table(path, columns=names)
        columns = {name: read[name].to_numpy(zero_copy_only=False) for name in names}
    # Text that is not UTF-8, and two columns of one name, are noticed only when they are used.
    except (ArrowException, OSError, UnicodeDecodeError, KeyError) as why:
        first = str(why).splitlines()[0] if str(why) else type(why).__name__
        raise ConfigError(f"{path} cannot be read as a Parquet file: {first}") from why
    return trace_of(columns, layout=layout, unit_s=unit_s, source=str(path))


def read_layout(path: Path) -> Layout:
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
    return Layout(*(int(value) for value in sizes))


@contextmanager
def _progress() -> Iterator[list[str]]:
    """Tells what is being done, if it takes long. The caller keeps element 0 up to date."""
    doing, done = ["starting"], threading.Event()

    def tell() -> None:
        while not done.wait(QUIET_S):
            sys.stderr.write(f"holdfast: {doing[0]} ...\n")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield doing
    finally:
        done.set()
        teller.join()
