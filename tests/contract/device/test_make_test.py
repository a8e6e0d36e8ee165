"""The tests of this folder that need the test device, in a process that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import far_device

HERE = Path(__file__).parent
LIMIT_S = 500


@pytest.mark.wide
@pytest.mark.timeout(LIMIT_S + 20)
def test_what_needs_a_device_works_on_the_test_device():
    if why := far_device.why_not():
        pytest.skip(why)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not wide", "-p", "no:xdist", str(HERE)],
        cwd=HERE.parents[2],
        env={**os.environ, "HOLDFAST_TEST_DEVICE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
