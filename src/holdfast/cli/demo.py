"""``holdfast demo``: trains a tiny GPT twice, in peace and through faults, and compares.

Does what a user could do by hand: it runs ``holdfast train`` and reads what that leaves behind.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast import models
from holdfast.cli import help_text
from holdfast.cli.report.demo import FAULTS, Report
from holdfast.errors import ConfigError
from holdfast.host import instruction_set
from holdfast.observability.summary import SUMMARY_FILE

_JOB = "tiny_gpt.py"
_LAYOUT = ["--pipelines", "2", "--stages", "2", "--microbatches", "8", "--steps", "70"]
_LAYOUT += ["--set", "workers.replace=0"]  # whoever is killed stays away until the join


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a tiny GPT through a slowdown, a kill and a re-join; compare with a calm run",
        description="Train a tiny GPT on 2 x 2 local workers twice: undisturbed, and through\n"
        f"{', '.join(FAULTS)}.\nThe parameters end the same, bit for bit.",
        **help_text.parts(["holdfast demo", "holdfast demo runs/try"]),
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="where the job, both runs and the report go (default: runs/demo)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    instruction_set.prepare()  # said once, not by each of the runs
    root: Path = args.directory
    job = _write_job(root)
    report = Report()
    report.say("--- undisturbed")
    calm = _train(job, root / "undisturbed")
    report.say("\n--- the same through a slowdown, a kill and a re-join")
    disturbed = _train(job, root / "disturbed", FAULTS)
    _holdfast("trace", str(root / "disturbed"))
    is_as_expected = report.compare(calm, disturbed, root / "disturbed")
    report.write(root / "report.md")
    sys.stdout.write(f"the job is {job}: change it, and train it with holdfast train {job}\n")
    return 0 if is_as_expected else 1


def _write_job(root: Path) -> Path:
    """As a file of the user's own: the package's folders are no place for jobs."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root}: is not empty; name a new directory: holdfast demo DIR")
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / _JOB).write_text((files(models) / _JOB).read_text())
    except OSError as why:
        raise ConfigError(f"{root}: cannot be written ({why.strerror}); name another DIR") from why
    return root / _JOB


def _train(job: Path, run_dir: Path, faults: Iterable[str] = ()) -> dict[str, Any]:
    """The summary of a run that went well."""
    flags = [word for fault in faults for word in ("--fault", fault)]
    _holdfast("train", str(job), *_LAYOUT, "--run-dir", str(run_dir), *flags)
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text())
    return summary


def _holdfast(*words: str) -> None:
    """In a process of its own, as from a terminal; what it says of an error is enough."""
    done = subprocess.run([sys.executable, "-m", "holdfast", *words])
    if done.returncode:
        sys.exit(done.returncode)
