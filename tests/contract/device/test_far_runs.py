"""Whole runs on a device: the bits of the processor, through kills, replays, joins and resumes."""

import pytest

from helpers import far_device, jobs, runs
from helpers.wide import wide
from holdfast.observability.events import RunStarted
from holdfast.runtime.stage.stage import Stage

LOG = runs.settings("recovery.log=boundary", "checkpoint.every_steps=2", "workers.replace=0")


@pytest.fixture
def near(train):
    return runs.finished(train("cpu", "1x1"))


def assert_same(far, near):
    assert far_device.FAR.counts["to device"]
    runs.assert_same_result(runs.finished(far), near)


@pytest.mark.parametrize(
    ("layout", "words", "fault"),
    [
        ("2x2", (), "kill 1.0 @ 2.B1"),
        wide(("1x1", (), "")),
        wide(("1x4", (), "")),
        wide(("2x2", ("stage.checkpoint_activations=true",), "kill 0.1 @ 2.reduce")),
        wide(("2x2", ("recovery.consistency=undo",), "kill 0.1 @ 2.applied")),
        wide(("2x2", ("optimizer.mode=global",), "kill 0.1 @ 2.settled")),
    ],
)
def test_a_run_ends_with_the_bits_of_the_processor(train, near, layout, words, fault):
    faults = ["--fault", fault] if fault else []
    far = train("far", layout, *faults, *runs.settings(*words))
    assert_same(far, near)
    assert far.summary["peak_device_bytes"].keys() == far.summary["peak_memory_bytes"].keys()
    assert near.summary["peak_device_bytes"] == {}
    assert far.summary["faults_fired"] == ([fault] if fault else [])


def test_a_lost_stage_is_replayed_on_the_device(train, near):
    far = train("far", "1x2", *LOG, "--fault", "kill 0.1 @ 3.F1")
    assert_same(far, near)
    assert far.summary["faults_fired"] == ["kill 0.1 @ 3.F1"]
    assert not far.summary["went_back"]


@pytest.mark.wide
def test_a_replacement_takes_the_state_to_its_device(train):
    words = runs.settings("workers.replace=1")
    steps = 24  # enough for it to be there before the end, on a busy machine too
    far = train("far", "2x2", *words, "--fault", "kill 1.0 @ 2.B1", steps=steps)
    assert any(type(event).__name__ == "WorkerJoined" for event in far.events)
    assert_same(far, runs.finished(train("cpu", "1x1", steps=steps)))


def test_a_run_goes_on_elsewhere(train, near):
    half = runs.finished(train("far", "1x2", steps=2))
    words = ["train", "--resume", str(half.run_dir), "--steps", "3", "--pipelines", "1"]
    more = ["--stages", "1", *runs.settings("device.kind=cpu", "workers.allow_mixed=true")]
    runs.assert_same_result(runs.finished(runs.holdfast([*words, *more], half.run_dir)), near)


@pytest.mark.wide
def test_another_device_does_not_resume_unasked(train):
    half = runs.finished(train("far", "1x1", steps=1))
    words = ["train", "--resume", str(half.run_dir), "--steps", "2", "--set", "device.kind=cpu"]
    outcome = runs.holdfast(words, half.run_dir)
    assert outcome.exit_code == 2
    assert "device is None, the checkpoint" in outcome.stderr


def test_a_device_without_memory_ends_the_run_in_one_line(train, monkeypatch):
    monkeypatch.setattr(far_device.FAR, "largest_bytes", 200)
    outcome = train("far", "1x1")
    [line] = [line for line in outcome.stderr.splitlines() if "out of memory" in line]
    assert outcome.exit_code == 2
    assert "the device of worker 0.0 is out of memory (far out of memory. Tried to allocate" in line
    assert "GiB in use): set a smaller Job.microbatch_size" in line
    assert "Traceback" not in outcome.stderr


NOT_DETERMINISTIC = """
import torch
from torch import nn

from holdfast import Job


class Puts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y.put(torch.arange(2, device=y.device), torch.ones(2, device=y.device))


def job():
    return Job(
        layers=[Puts()],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=[(torch.ones(4), torch.zeros(4))] * 64,
    )
"""


def test_an_operation_without_a_deterministic_kernel_is_named_with_what_to_do(tmp_path):
    job = jobs.write(tmp_path, "puts", NOT_DETERMINISTIC)
    words = (*runs.layout("1x1"), *runs.settings("device.kind=far"))
    outcome = runs.threads(job, tmp_path / "run", *words, steps=1)
    assert outcome.exit_code == 2
    [told] = [line for line in outcome.stderr.splitlines() if "put_" in line]
    expected = "put_ has no deterministic kernel on this device: compute it in another way"
    assert expected in told
    assert "in layer 0 (Puts)" in told
    free = f"{NOT_DETERMINISTIC}\ntorch.use_deterministic_algorithms(False)\n"
    free_job = jobs.write(tmp_path, "puts_freely", free)
    runs.finished(runs.threads(free_job, tmp_path / "free", *words, steps=1))


@pytest.fixture
def peak(monkeypatch):
    """Most micro-batches that any stage had in flight, of each run so far."""
    found: list[int] = []
    forward = Stage.forward

    def noting(stage, *words, **named):
        done = forward(stage, *words, **named)
        found.append(stage.in_flight)
        return done

    monkeypatch.setattr(Stage, "forward", noting)
    return found


# Two workers share the device; the second stage holds 3.4 KiB and keeps 288 bytes.
@pytest.mark.parametrize(
    ("total_bytes", "words", "most"), [(9_400, ("parallel.cut=[2]",), 2), (1_000, (), 1)]
)
def test_no_more_is_in_flight_than_the_device_has_room_for(
    train, peak, monkeypatch, total_bytes, words, most
):
    given = ["--microbatches", "8", *runs.settings(*words)]
    near = runs.finished(train("cpu", "1x2", *given))
    assert max(peak) > most
    peak.clear()
    monkeypatch.setattr(far_device.FAR, "total_bytes", total_bytes)
    far = train("far", "1x2", *given)
    assert_same(far, near)
    assert max(peak) == most
    [started] = [event for event in far.events if isinstance(event, RunStarted)]
    assert started.in_flight == most
    assert started.cut == (2,) or not words
    assert any("in flight a worker: device memory" in line for line in far.lines)
    assert not any(event.in_flight for event in near.events if isinstance(event, RunStarted))


def test_an_index_that_is_not_there_is_refused_before_anything_is_written(train):
    outcome = train("far", "1x1", *runs.settings("device.index=3"))
    assert outcome.exit_code == 2
    assert "device.index=3: this machine has far devices 0 to 0; expected" in outcome.stderr
    assert not outcome.run_dir.exists() or not any(outcome.run_dir.glob("checkpoints/*"))
