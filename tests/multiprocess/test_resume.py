"""A run that was cut in two is the run that was not, whatever the layouts of the two."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from helpers import runs
from helpers.runs import MICROBATCHES, STEPS, TINY_GPT, assert_same_result, finished
from helpers.wide import first
from holdfast.observability.events import CheckpointSaved, RunStarted

EMULATED = "device.emulate=F=1ms,B=1ms,W=1ms"


@pytest.fixture
def cut_short(two_by_two, tmp_path):
    """A copy of the 2 x 2 run as it was after 10 steps."""
    run_dir = Path(shutil.copytree(two_by_two.run_dir, tmp_path / "cut short"))
    for step in (15, 20):
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}")
    return run_dir


def checkpoints(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def first_step(run):
    return [event for event in run.events if isinstance(event, RunStarted)][-1].first_step


@pytest.mark.multiprocess
def test_four_processes_resumed_in_place_at_step_5_end_as_if_never_stopped(reference, cut_short):
    words = [*runs.layout("2x2"), "--resume", str(cut_short / "checkpoints" / "step-00000005")]
    run = finished(runs.processes(TINY_GPT, cut_short, *words, *runs.settings("checkpoint.keep=9")))
    assert first_step(run) == 5
    assert run.summary["steps"] == STEPS - 5
    assert_same_result(run, reference)
    # Step 10 of the history that was left is kept, but never resumed from by mistake.
    assert checkpoints(cut_short) == ["step-00000005", "step-00000010.abandoned", "step-00000020"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("layout", first(1, ["1x4", "1x1", "4x1"]))
def test_a_run_resumed_in_another_layout_ends_as_if_never_stopped(
    reference, cut_short, tmp_path, layout
):
    words = [*runs.layout(layout), "--resume", str(cut_short)]
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words))
    assert first_step(run) == 10
    assert run.summary["steps"] == STEPS - 10
    assert_same_result(run, reference)


def test_only_the_newest_checkpoints_are_kept_and_none_is_left_unfinished(tmp_path):
    words = runs.settings("checkpoint.every_steps=2", "checkpoint.keep=2", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *runs.layout("2x2"), *words, steps=9))
    assert checkpoints(run.run_dir) == ["step-00000008", "step-00000009"]


def test_a_run_without_checkpoints_leaves_none(tmp_path):
    words = runs.settings("checkpoint.at_end=false", "checkpoint.every_steps=0", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words, steps=3))
    assert not (run.run_dir / "checkpoints").exists()


@pytest.mark.parametrize(
    ("first", "names"), [(1, ["step-00000001"]), (2, ["step-00000002"]), (0, [])]
)
def test_the_first_checkpoint_comes_early_unless_it_is_not_wanted(tmp_path, first, names):
    words = runs.settings("checkpoint.at_end=false", f"checkpoint.first_step={first}", EMULATED)
    run = finished(runs.threads(TINY_GPT, tmp_path / "run", *words, steps=4))
    assert [path.name for path in (run.run_dir / "checkpoints").glob("*")] == names
    assert [e.step for e in run.events if isinstance(e, CheckpointSaved)] == [first] * bool(first)


def expected_operations(kinds):
    """Of one worker in one step: each micro-batch forward and back once, then the reduction."""
    backward = kinds["BW"] + kinds["B"]
    return kinds["F"] == backward and kinds["B"] == kinds["W"] and kinds["R"] == 1


@pytest.mark.multiprocess
def test_the_trace_of_a_run_shows_every_operation_of_every_worker(two_by_two, tmp_path):
    out = tmp_path / "trace.json"
    done = runs.holdfast(["trace", str(two_by_two.run_dir), "--out", str(out)], tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    rows = [row for row in json.loads(out.read_text())["traceEvents"] if row["ph"] == "X"]
    shown = {(row["pid"], row["tid"], row["args"]["step"], row["name"]) for row in rows}
    for stage in (0, 1):
        for step in range(STEPS):
            mine = {p: {n for q, t, s, n in shown if (q, t, s) == (p, stage, step)} for p in (0, 1)}
            assert not (mine[0] & mine[1]) - {f"{stage}R"}
            for names in mine.values():
                kinds = Counter(name[1:].rstrip("0123456789") for name in names)
                assert kinds["F"] == MICROBATCHES // 2
                assert expected_operations(kinds), names
    assert all(row["dur"] >= 0 for row in rows)
