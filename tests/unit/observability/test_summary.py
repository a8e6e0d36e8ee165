import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.sample_events import sample
from holdfast.observability.events import (
    FaultFired,
    Recovered,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReady,
)
from holdfast.observability.jsonfile import write_json
from holdfast.observability.summary import summarize, write_summary


def started(first_step=0):
    return sample(RunStarted, at_s=0.0, steps=9, cut=(1,), first_step=first_step)


def step(number, loss=1.0, took_s=0.5, skipped=False):
    return StepFinished(
        at_s=float(number),
        step=number,
        loss=loss,
        gradient_norm=1.0,
        tokens=100,
        took_s=took_s,
        skipped=skipped,
    )


def ready(worker, torch="2.6"):
    return WorkerReady(at_s=0.0, worker=worker, pid=1, versions={"torch": torch})


DONE = RunFinished(
    at_s=9.0,
    parameters_sha256="ab12",
    peak_memory_bytes={"0.0": 10, "0.1": 20},
    peak_device_bytes={"0.1": 15},
    kept_bytes={"0.0": 3, "0.1": 4},
)
BACK = WentBack(
    at_s=9.0,
    lost_stage=1,
    to_step=1,
    checkpoint="run/step-1",
    reason="none left",
    thrown_away=4,
)
RECOVERED = sample(
    Recovered,
    at_s=1000.1,
    step=5,
    workers=("1.0", "1.1"),
    fault_s=1000.0,
    notice_s=1000.006,
    plan_s=1000.031,
    resumed_s=1000.084,
    operations=17,
    members=5,
    reason="2 of 7 workers are missing",
)


def test_a_finished_run_is_told_whole():
    back = StepTakenBack(at_s=1.0, worker="0.1", step=1, reason="clipped")
    events = [ready("0.1"), ready("0.0"), started(4), step(4, 3.0), back, step(5, 2.0), DONE]
    summary = summarize(events, config={"seed": 7})
    assert summary.outcome == "finished"
    assert (summary.first_step, summary.steps, summary.losses) == (4, 2, (3.0, 2.0))
    assert summary.parameters_sha256 == "ab12"
    assert summary.workers == ("0.0", "0.1")
    assert summary.peak_memory_bytes == {"0.0": 10, "0.1": 20}
    assert summary.peak_device_bytes == {"0.1": 15}
    assert summary.kept_bytes == {"0.0": 3, "0.1": 4}
    assert summary.num_taken_back == 1
    assert summary.versions == {"torch": "2.6"}
    assert summary.config == {"seed": 7}


def test_the_first_step_warms_up_and_does_not_count_for_the_speed():
    summary = summarize([step(0, took_s=60.0), step(1), step(2, took_s=1.5)], config={})
    assert summary.step_s == 1.0
    assert summary.tokens_per_s == 100.0


@pytest.mark.parametrize(
    ("samples", "counted"), [(0, "tokens"), (10, "tokens"), (100, "samples"), (200, "samples")]
)
def test_what_is_no_more_than_one_a_sample_is_counted_as_samples(samples, counted):
    run = replace(started(), samples=samples)
    assert summarize([run, step(0), step(1)], config={}).counted == counted


def test_a_single_step_is_all_the_speed_there_is():
    assert summarize([step(0, took_s=0.5)], config={}).tokens_per_s == 200.0


def test_a_step_that_finished_twice_counts_as_it_finished_last():
    assert summarize([step(0, 5.0), step(1, 4.0), step(1, 4.5)], config={}).losses == (5.0, 4.5)


def test_steps_that_ran_again_after_going_back_count_once():
    events = [step(0, 5.0), step(1, 4.0), step(2, 3.0), BACK, step(1, 4.5), step(2, 3.5)]
    summary = summarize(events, config={})
    assert (summary.steps, summary.losses) == (3, (5.0, 4.5, 3.5))


def test_steps_that_were_gone_back_on_and_did_not_run_again_do_not_count():
    failed = RunFailed(at_s=1.0, reason="nobody is left")
    summary = summarize([step(0, 5.0), step(1, 4.0), step(2), BACK, failed], config={})
    assert (summary.steps, summary.losses) == (1, (5.0,))


def written(path, *events):
    write_summary(path, summarize(events, config={}))
    return json.loads(path.read_text())


def test_a_recovery_is_told_in_seconds_from_the_fault(tmp_path):
    assert written(tmp_path / "summary.json", RECOVERED)["recoveries"] == [
        {
            "step": 5,
            "cause": "death",
            "workers": ["1.0", "1.1"],
            "seconds_to_notice": 0.006,
            "seconds_to_plan": 0.031,
            "seconds_to_resume": 0.084,
            "redone": 3,
            "operations": 17,
            "members": 5,
            "period_s": 0.4,
            "reason": "2 of 7 workers are missing",
            "thrown_away": 0,
        }
    ]


def test_faults_joins_moves_and_ways_back_are_listed_in_order(tmp_path):
    summary = written(
        tmp_path / "summary.json",
        FaultFired(at_s=1.0, worker="1.0", fault="kill 1.0@6", step=5, point="begin"),
        WorkerLost(at_s=1.0, worker="1.0", step=5, cause="signal SIGKILL"),
        FaultFired(at_s=2.0, worker="", fault="join@8", step=7, point=""),
        WorkerJoined(at_s=3.0, worker="1.0", stage=0, step=8, copied_bytes=99, took_s=0.5),
        WorkerMoved(at_s=4.0, worker="0.0", from_stage=0, to_stage=1, step=9, reason="starved"),
        BACK,
    )
    assert summary["faults_fired"] == ["kill 1.0@6", "join@8"]
    assert summary["joins"] == [
        {"worker": "1.0", "stage": 0, "step": 8, "copied_bytes": 99, "took_s": 0.5}
    ]
    assert summary["moves"] == [
        {"worker": "0.0", "from_stage": 0, "to_stage": 1, "step": 9, "reason": "starved"}
    ]
    assert summary["went_back"] == [
        {
            "lost_stage": 1,
            "to_step": 1,
            "checkpoint": "run/step-1",
            "reason": "none left",
            "thrown_away": 4,
        }
    ]


def test_a_calm_run_lists_none_of_them():
    summary = summarize([step(0)], config={})
    assert (summary.recoveries, summary.faults_fired, summary.joins) == ((), (), ())
    assert (summary.moves, summary.went_back, summary.kept_bytes) == ((), (), {})


def test_skipped_steps_are_named():
    assert summarize([step(0), step(1, skipped=True)], config={}).skipped_steps == (1,)


def test_a_failed_run_says_why():
    failed = RunFailed(at_s=1.0, reason="worker 0.1 ended")
    assert summarize([started(), failed], config={}).outcome == "failed: worker 0.1 ended"


def test_a_run_without_a_step_has_no_speed():
    summary = summarize([started()], config={})
    assert (summary.outcome, summary.step_s, summary.tokens_per_s) == ("unfinished", None, None)


def test_workers_of_different_versions_show():
    summary = summarize([ready("0.0", "2.7"), ready("0.1", "2.6")], config={})
    assert summary.versions == {"torch": "2.6 / 2.7"}


def test_the_file_is_standard_json_that_keeps_every_bit_of_a_loss(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, summarize([step(0, 0.1 + 0.2), step(1, math.nan)], config={}))
    assert json.loads(path.read_text())["losses"] == [0.1 + 0.2, "nan"]


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(path, {"steps": 1})
    with pytest.raises(TypeError):
        write_json(path, {"steps": object()})
    assert json.loads(path.read_text()) == {"steps": 1}
    assert [found.name for found in Path(tmp_path).iterdir()] == ["summary.json"]
