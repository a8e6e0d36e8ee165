"""On a real GPU, where there is one: has never run so far."""

import pytest
import torch

from helpers import runs

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture
def alone(train):
    return runs.finished(train("cuda", "1x1"))


@pytest.mark.parametrize("layout", ["1x2", "2x2", "1x4"])
def test_the_layout_does_not_show(train, alone, layout):
    runs.assert_same_result(runs.finished(train("cuda", layout)), alone)


def test_a_kill_does_not_show(train, alone):
    fault = "kill 1.0 @ 2.B1"
    killed = runs.finished(train("cuda", "2x2", "--fault", fault))
    assert killed.summary["faults_fired"] == [fault]
    runs.assert_same_result(killed, alone)


def test_a_resumed_run_ends_as_if_never_stopped(train, alone):
    half = runs.finished(train("cuda", "1x2", steps=2))
    words = ["train", "--resume", str(half.run_dir), "--steps", "3"]
    runs.assert_same_result(runs.finished(runs.holdfast(words, half.run_dir)), alone)
