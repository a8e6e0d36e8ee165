"""A small sample of the benchmark of control at scale: deaths and a lost machine. No timing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "scale.py"


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_scale_bench_prints_its_figures() -> None:
    arguments = ["--workers", "64", "--steps", "2", "--kills", "1", "--processes", "1"]
    done = subprocess.run(
        [sys.executable, str(BENCH), *arguments], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {
        "cpu_share", "notice_to_proceed_s", "machine_to_proceed_s", "recovery_cpu_s", "memory_mb",
    }  # fmt: skip
    assert all(set(of) == {"64"} and of["64"] > 0 for of in found.values())
