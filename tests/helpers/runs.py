"""Whole training runs for the tests: workers as threads of this process, or real processes."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.cli.main import main
from holdfast.observability.events import Event
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.observability.summary import SUMMARY_FILE
from holdfast.observability.text import INDENT
from holdfast.storage.checkpoint import read_layers
from holdfast.storage.manifest import find

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY_GPT = EXAMPLES / "tiny_gpt.py"
STEPS, MICROBATCHES = 20, 4  # of the runs that are compared with each other
STAYS_AWAY = "workers.replace=0"  # who was killed, so that a test knows who is left
LIMIT_S = 240.0  # no run of a test takes this long unless it hangs


@dataclass(frozen=True)
class Outcome:
    """A run that has ended, well or not."""

    run_dir: Path
    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """What it has printed; what was folded to fit a terminal is one line again."""
        return unfolded(self.stdout.splitlines())

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.run_dir / SUMMARY_FILE).read_text())

    @property
    def events(self) -> list[Event]:
        return read_events(self.run_dir / EVENTS_FILE)

    @property
    def sha256(self) -> str:
        return self.summary["parameters_sha256"]

    @property
    def losses(self) -> list[float]:
        return self.summary["losses"]

    def state(self) -> dict[str, Tensor]:
        """All tensors of the newest checkpoint: parameters, buffers, optimizer, exponents."""
        checkpoint = find(self.run_dir)
        return read_layers(checkpoint, range(checkpoint.num_layers))


def unfolded(lines: Sequence[str]) -> list[str]:
    whole: list[str] = []
    for line in lines:
        if line.startswith(INDENT) and whole:
            whole[-1] += f" {line.strip()}"
        else:
            whole.append(line)
    return whole


def layout(text: str) -> list[str]:
    """``2x4`` as flags."""
    pipelines, stages = text.split("x")
    return ["--pipelines", pipelines, "--stages", stages]


def settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


def arguments(
    job: Path,
    run_dir: Path,
    *more: str,
    steps: int | None = STEPS,
    microbatches: int | None = MICROBATCHES,
) -> list[str]:
    words = ["train", str(job), "--run-dir", str(run_dir), *settings(STAYS_AWAY)]
    words += [] if steps is None else ["--steps", str(steps)]
    words += [] if microbatches is None else ["--microbatches", str(microbatches)]
    return [*words, *more]


def holdfast(words: Sequence[str], run_dir: Path) -> Outcome:
    """The command, in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        exit_code = main(words)
    return Outcome(run_dir, exit_code, stdout.getvalue(), stderr.getvalue())


def threads(job: Path, run_dir: Path, *more: str, **numbers: int | None) -> Outcome:
    words = arguments(job, run_dir, *more, **numbers)
    return holdfast([*words, *settings("workers.kind=threads")], run_dir)


def processes(job: Path, run_dir: Path, *more: str, **numbers: int | None) -> Outcome:
    done = subprocess.run(
        command(*arguments(job, run_dir, *more, **numbers)),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=LIMIT_S,
    )
    return Outcome(run_dir, done.returncode, done.stdout, done.stderr)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


def environment() -> dict[str, str]:
    """As a user's, whatever the test run itself was started with."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


def finished(outcome: Outcome) -> Outcome:
    """The same outcome, once it is sure that the run went well."""
    assert (outcome.exit_code, outcome.stderr) == (0, ""), outcome
    assert outcome.summary["outcome"] == "finished"
    return outcome


def assert_same_result(one: Outcome, other: Outcome) -> None:
    """Losses, parameters, buffers, optimizer state and exponents, bit for bit."""
    assert one.sha256 == other.sha256
    num_common = min(len(one.losses), len(other.losses))  # a resumed run has only the later ones
    assert num_common
    assert one.losses[-num_common:] == other.losses[-num_common:]
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    different = [key for key in ours if not torch.equal(ours[key], theirs[key])]
    assert not different
