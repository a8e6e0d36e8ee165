"""A small sample of the undo benchmark: it runs, and undoing with residuals is exact. No timing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "undo.py"


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_undo_bench_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {
        "residual_share", "same_sha256", "plain_share", "plain_drift", "keep_old_bytes",
        "undo_bytes", "keep_old_bytes_settled", "undo_bytes_settled", "step_ratio",
    }  # fmt: skip
    assert found["residual_share"] == 1.0
    assert found["same_sha256"] is True
    assert all(share["parameter"] < 1.0 for share in found["plain_share"].values())
    assert found["undo_bytes"] < found["keep_old_bytes"]
    assert found["undo_bytes_settled"] < found["keep_old_bytes_settled"]
    assert set(found["step_ratio"]) == set(found["plain_share"])
