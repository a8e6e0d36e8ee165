"""``holdfast trace``: where the time of a run went, as a file that trace viewers open."""

import argparse
import sys
from pathlib import Path

from holdfast.cli import help_text
from holdfast.errors import ConfigError
from holdfast.observability.chrometrace import chrome_trace
from holdfast.observability.events import Event, WorkerStep
from holdfast.observability.jsonfile import write_json
from holdfast.observability.log import EVENTS_FILE, read_events


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "trace",
        help="write the operations of a run as a Chrome/Perfetto trace",
        description="Write every operation of every worker of a run as a Chrome/Perfetto trace.\n"
        "Open it at https://ui.perfetto.dev or in chrome://tracing.",
        **help_text.parts(["holdfast trace runs/a", "holdfast trace runs/a --out a.json"]),
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="directory of the run")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write it (default: RUN_DIR/trace.json)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    events = _events_of(args.run_dir)
    out: Path = args.out or args.run_dir / "trace.json"
    try:
        write_json(out, chrome_trace(events))
    except OSError as why:
        raise ConfigError(f"cannot write the trace to {out}: {why}; choose another --out") from why
    num_ops = sum(len(event.ops) for event in events if isinstance(event, WorkerStep))
    sys.stdout.write(
        f"wrote {num_ops} operations to {out}; open it at https://ui.perfetto.dev "
        "or in Chrome at chrome://tracing\n"
    )
    return 0


def _events_of(run_dir: Path) -> list[Event]:
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such directory; expected the directory of a run")
    events = read_events(run_dir / EVENTS_FILE)
    if not any(isinstance(event, WorkerStep) and event.ops for event in events):
        raise ConfigError(
            f"{run_dir / EVENTS_FILE} holds no times of operations: "
            "no step of this run has finished, or their times were not recorded"
        )
    return events
