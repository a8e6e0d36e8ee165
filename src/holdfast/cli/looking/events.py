"""``holdfast events``: a run's events in forms that others read, and the schema of events."""

import argparse
import json
import sys
from pathlib import Path

from holdfast.cli import help_text
from holdfast.errors import ConfigError
from holdfast.observability.events.schema import json_schema
from holdfast.observability.log.exporting import export_lines, export_tables
from holdfast.observability.log.run_log import check_run

_FORMATS = """\
formats:
  parquet   a folder with steps.parquet, operations.parquet, transfers.parquet
            and events.parquet (all that is rare); needs pyarrow
  csv       the same as .csv
  jsonl     every event of all files in order, as it was written"""
_EXAMPLES = (
    "holdfast events runs/a --to parquet",
    "holdfast events runs/a --to csv --out a-csv",
    "holdfast events runs/a --to jsonl --out -",
    "holdfast events --schema",
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "events",
        help="write the events of a run in a format that others read",
        description="Write all events of a run, older files included, in a format that others\n"
        "read; or print the JSON Schema of events. The run may still be under way.",
        **help_text.parts(_EXAMPLES, _FORMATS),
    )
    parser.add_argument(
        "run_dir", type=Path, nargs="?", metavar="RUN_DIR", help="directory of the run"
    )
    parser.add_argument(
        "--to", choices=("parquet", "csv", "jsonl"), default="parquet", help="(default: parquet)"
    )
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="a folder, for jsonl a file, or - to print them (default: "
        "RUN_DIR/exports/events or RUN_DIR/exports/events.jsonl)",
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of a line, and do no more"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.schema:
        sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")
        return 0
    if args.run_dir is None:
        raise ConfigError("RUN_DIR is missing: expected the directory of a run, or --schema")
    try:
        return _write_lines(args) if args.to == "jsonl" else _write_tables(args)
    except BrokenPipeError:
        raise
    except OSError as why:
        raise ConfigError(f"cannot write the events: {why}; choose another --out") from why


def _write_lines(args: argparse.Namespace) -> int:
    check_run(args.run_dir)  # before anything is made in it
    out = args.out or str(args.run_dir / "exports" / "events.jsonl")
    if out == "-":
        export_lines(args.run_dir, sys.stdout)
        return 0
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            number = export_lines(args.run_dir, file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sys.stdout.write(f"wrote {number:,} events to {path}\n")
    return 0


def _write_tables(args: argparse.Namespace) -> int:
    if args.out == "-":
        raise ConfigError(f"--out -: {args.to} is several files; give a folder, or use --to jsonl")
    folder = Path(args.out or args.run_dir / "exports" / "events")
    num_rows = export_tables(args.run_dir, args.to, folder)
    rows = ", ".join(f"{number:,} {name}" for name, number in num_rows.items())
    sys.stdout.write(f"wrote {rows} to {folder}\n")
    return 0
