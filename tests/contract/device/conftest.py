"""Most of these need a device. One test starts a process that has the test device, for the others:
torch takes one in before its first backward, and keeps it."""

import os
import sys
from collections.abc import Callable

import pytest

from helpers import jobs, runs

ON_TEST_DEVICE = "HOLDFAST_TEST_DEVICE" in os.environ
STEPS = 3

collect_ignore_glob = (
    ["test_make_test.py", "test_cuda.py", "test_choosing.py"]
    if ON_TEST_DEVICE
    else ["test_far_*.py"]
)

Train = Callable[..., runs.Outcome]


@pytest.fixture
def train(tmp_path_factory, monkeypatch) -> Train:
    """(kind, layout, *words) -> a run of a tiny job whose every third step is hard."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder
    folder = tmp_path_factory.mktemp("device")
    job = jobs.write(folder, "tiny", jobs.TINY.replace("CLIP_NORM", "0.55"))
    numbers = iter(range(100))

    def run(kind: str, layout: str, *words: str, steps: int = STEPS) -> runs.Outcome:
        run_dir = folder / f"run-{next(numbers)}"
        own = runs.settings(f"device.kind={kind}")
        return runs.threads(job, run_dir, *runs.layout(layout), *own, *words, steps=steps)

    return run
