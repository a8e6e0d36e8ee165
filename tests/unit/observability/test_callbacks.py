"""Callbacks: who is called with what, what a raising or slow one does, what the loggers write."""

import csv
from pathlib import Path

import pytest

from holdfast.callbacks import Callback, CsvLogger, RunSoFar, TensorBoardLogger
from holdfast.callbacks.calling import Calls, check_callbacks
from holdfast.config import RunConfig
from holdfast.errors import CallbackError, CheckpointError, ConfigError
from holdfast.observability.events import CheckpointSaved, StepFinished, Validated, WorkerLost

STEP = StepFinished(
    at_s=1.0, step=4, loss=0.5, gradient_norm=2.0, tokens=8, took_s=0.25, clipped=True, lr=0.1
)
FOUND = Validated(
    at_s=2.0, step=5, loss=0.25, metrics={"near": 0.75}, is_best=True, took_s=0.1
)  # fmt: skip
SAVED = CheckpointSaved(at_s=3.0, step=5, path="run/checkpoints/step-5", took_s=0.1)
LOST = WorkerLost(at_s=4.0, worker="1.0", step=4, cause="signal SIGKILL")


class Noted(Callback):
    def __init__(self) -> None:
        self.heard = []

    def on_event(self, event, run):
        self.heard.append(("event", event))

    def on_step(self, event, run):
        self.heard.append(("step", run.steps))

    def on_validation(self, event, run):
        self.heard.append(("validation", run.last_validation))

    def on_checkpoint(self, event, run):
        self.heard.append(("checkpoint", run.weights()))

    def on_worker_lost(self, event, run):
        self.heard.append(("lost", event.worker))

    def on_end(self, run):
        self.heard.append(("end", run.steps))


class Failing(Callback):
    def on_step(self, event, run):
        raise ValueError("no room")

    def on_end(self, run):
        raise OSError("disk full")


def run_so_far(folder: Path = Path("run")) -> RunSoFar:
    return RunSoFar(folder, RunConfig(), lambda path: {"path": path})


def calls(*callbacks, on_error="stop", warn=lambda line: None, **more) -> Calls:
    return Calls(callbacks, run_so_far(), on_error, warn, **more)


def test_each_event_comes_to_its_method_with_the_run_as_it_is():
    noted = Noted()
    called = calls(noted)
    for event in (STEP, FOUND, SAVED, LOST):
        called.call(event)
    called.end()
    assert [kind for kind, _ in noted.heard if kind == "event"] == ["event"] * 4
    assert [one for one in noted.heard if one[0] != "event"] == [
        ("step", 5),
        ("validation", FOUND),
        ("checkpoint", {"path": SAVED.path}),
        ("lost", "1.0"),
        ("end", 5),
    ]


def test_weights_need_a_checkpoint():
    with pytest.raises(CheckpointError, match="there is none yet: ask in on_checkpoint"):
        run_so_far().weights()


def test_one_that_raises_ends_the_run_with_its_name():
    noted = Noted()
    called = calls(Failing(), noted)
    with pytest.raises(
        CallbackError, match="callback Failing raised ValueError at step 5: no room"
    ):
        called.call(STEP)
    with pytest.raises(
        CallbackError, match="callback Failing raised OSError at the end of the run"
    ):
        called.end()
    assert noted.heard == [("end", 5)]  # whoever comes after it is told of the end


def test_or_a_line_tells_of_it_once_and_the_others_go_on():
    lines = []
    noted = Noted()
    called = calls(Failing(), noted, on_error="warn", warn=lines.append)
    for _ in range(3):
        called.call(STEP)
    assert lines == ["callback Failing raised ValueError at step 5: no room; the run goes on"]
    assert [kind for kind, _ in noted.heard].count("step") == 3


def test_a_slow_one_is_told_of():
    lines, times = [], iter([0.0, 4.0, 10.0, 17.0])
    called = calls(Noted(), warn=lines.append, clock=lambda: next(times))
    called.call(STEP)
    assert lines == []
    called.call(STEP)
    assert lines == ["callback Noted took 7 s at step 5; the run does not wait for it"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (print, "callbacks is a builtin_function_or_method: expected a list"),
        ([print], r"callbacks\[0\] is a .*for a function there is on_event"),
        ([CsvLogger], r"callbacks\[0\] is a type: .* make one of the class first"),
    ],
)
def test_what_is_no_callback_is_refused(given, expected):
    with pytest.raises(ConfigError, match=expected):
        check_callbacks(given)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_are_added_to(tmp_path):
    for _ in range(2):  # as by a run that is resumed
        logger, run = CsvLogger(), run_so_far(tmp_path)
        logger.on_step(STEP, run)
        logger.on_validation(FOUND, run)
    steps, found = rows(tmp_path / "steps.csv"), rows(tmp_path / "validation.csv")
    assert len(steps) == len(found) == 2
    assert steps[0] == {
        "step": "5",
        "loss": "0.5",
        "gradient_norm": "2.0",
        "lr": "0.1",
        "tokens": "8",
        "took_s": "0.25",
        "clipped": "1",
        "skipped": "0",
    }
    assert found[1] == {"step": "5", "loss": "0.25", "near": "0.75", "is_best": "1"}


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="an extra: pip install holdfast[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger, run = TensorBoardLogger(), run_so_far(tmp_path)
    logger.on_step(STEP, run)
    logger.on_validation(FOUND, run)
    logger.on_end(run)
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in read.Scalars("train/loss")] == [(5, 0.5)]
    assert [(one.step, one.value) for one in read.Scalars("validation/near")] == [(5, 0.75)]
