"""The limit of oneDNN's instruction set reaches the processes that compute, and is told."""

import subprocess

import pytest

from helpers import jobs, runs
from holdfast.instruction_set import LIMIT_VARIABLES, VARIABLE, read_cpu
from holdfast.observability.events import WorkerReady

pytestmark = pytest.mark.multiprocess


@pytest.mark.skipif("avx" not in read_cpu().flags, reason="names of another processor")
def test_workers_compute_with_the_limit_and_tell_it(tmp_path):
    run_dir = tmp_path / "run"
    words = runs.arguments(jobs.small(tmp_path), run_dir, *runs.layout("1x2"))
    unlimited = dict.fromkeys(LIMIT_VARIABLES, "")
    done = subprocess.run(
        runs.command(*words),
        capture_output=True,
        text=True,
        env=runs.environment() | unlimited | {VARIABLE: "AVX"},
        timeout=runs.LIMIT_S,
    )
    outcome = runs.finished(runs.Outcome(run_dir, done.returncode, done.stdout, done.stderr))
    ready = [event for event in outcome.events if isinstance(event, WorkerReady)]
    assert [event.versions["oneDNN instruction set"] for event in ready] == ["AVX", "AVX"]
