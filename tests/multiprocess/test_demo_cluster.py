"""make demo-cluster, as its user runs it: in namespaces where there are any, and on loopback."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers import runs

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.multiprocess, pytest.mark.cluster, pytest.mark.timeout(1800)]
LIMIT_S = 1500.0
SHOWN = [
    "8 workers train on 4 machines",
    "died with its workers: the others go on",
    "was killed: workers and agents wait for another",
    "another coordinator has taken over; 6 workers go on where they were",
    "is back, and 2 workers have joined on it",
    "the same bits",
]


@pytest.mark.parametrize("words", [[], ["--loopback"]], ids=["namespaces", "loopback"])
def test_a_machine_and_the_coordinator_die_and_come_back_and_the_bits_are_the_same(tmp_path, words):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/demo_cluster.py", "--folder", tmp_path / "demo", *words],
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    places = [next(n for n, line in enumerate(lines) if part in line) for part in SHOWN]
    assert places == sorted(places)
    digests = {line.split()[-1] for line in lines if " sha256 " in line}
    assert len(digests) == 1
    assert all(len(digest) == 64 for digest in digests)
