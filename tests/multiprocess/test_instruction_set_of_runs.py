"""The limit of oneDNN's instruction set reaches the processes that compute, and is told."""

import subprocess
import sys

import pytest

from helpers import jobs, runs
from holdfast.host.instruction_set import LIMIT_VARIABLES, VARIABLE, read_cpu
from holdfast.observability.events import WorkerReady

pytestmark = pytest.mark.multiprocess


@pytest.mark.wide
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


BF16_PRODUCT = """
from holdfast.host import instruction_set
instruction_set.prepare_script()
import torch
layer = torch.nn.Linear(256, 256).bfloat16()
assert layer(torch.ones(64, 256).bfloat16()).isfinite().all()
"""


def test_sigill_a_bf16_product_survives_whatever_this_machine_shows(tmp_path):
    """With a cache of its own, so that the real probe answers. Without a limit torch may die."""
    unlimited = dict.fromkeys((*LIMIT_VARIABLES, VARIABLE), "")
    done = subprocess.run(
        [sys.executable, "-c", BF16_PRODUCT],
        capture_output=True,
        text=True,
        env=runs.environment() | unlimited | {"XDG_CACHE_HOME": str(tmp_path)},
        timeout=runs.LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
