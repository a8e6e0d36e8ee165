import errno
import io
import json
import math
import subprocess
import sys
from typing import get_args

import pytest

from holdfast.errors import ConfigError
from holdfast.observability.events import (
    CheckpointFailed,
    CheckpointSaved,
    ConnectionDropped,
    Diagnosed,
    Event,
    FaultFired,
    Interrupted,
    IntervalChosen,
    JoinFailed,
    JoinUnfinished,
    JsonLines,
    LogChanged,
    MitigationChosen,
    PlanSwitched,
    Recovered,
    ReplayBegan,
    RunFailed,
    RunFinished,
    RunStarted,
    SlownessOver,
    StageRebuilt,
    StepFinished,
    StepTakenBack,
    Warned,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReady,
    WorkerReplaced,
    WorkerStep,
    WorkerStuck,
    read_events,
)

EVENTS = [
    RunStarted(
        at_s=1.5,
        pipelines=2,
        stages=2,
        microbatches=8,
        steps=10,
        schedule="1f1b",
        reason="equal measured cost",
        cut=(3,),
        address="127.0.0.1:40123",
        limits="a worker is lost when it is silent for 10 s",
    ),
    WorkerReady(at_s=1.6, worker="1.0", pid=77, versions={"torch": "2.6"}),
    WorkerStep(at_s=2.0, worker="1.0", step=0, ops=(("0F0", 1.7, 1.8), ("0BW0", 1.8, 1.95))),
    WorkerStep(
        at_s=2.0,
        worker="1.1",
        step=0,
        ops=(("1F0", 1.7, 1.8),),
        cpu_s=(0.05,),
        sizes=(64,),
        transfers=(("1.0", "pipeline", 3, 4096, 0.002),),
    ),
    StepTakenBack(at_s=2.0, worker="1.0", step=0, reason="clipped"),
    StepFinished(
        at_s=2.1,
        step=0,
        loss=0.1 + 0.2,
        gradient_norm=None,
        tokens=512,
        took_s=0.4,
        clipped=True,
    ),
    CheckpointSaved(at_s=2.2, step=1, path="run/step-1", took_s=0.1),
    CheckpointFailed(
        at_s=2.2, step=1, worker="0.1", reason="disk full", next_writer="1.1", newest=-1
    ),
    FaultFired(at_s=2.3, worker="1.0", fault="kill 1.0@2.F0", step=1, point="F0"),
    FaultFired(at_s=2.3, worker="", fault="join@2", step=1, point=""),
    WorkerLost(at_s=2.4, worker="1.0", step=1, cause="signal SIGKILL"),
    Recovered(
        at_s=2.5,
        epoch=2,
        step=1,
        cause="death",
        workers=("1.0",),
        fault_s=2.3,
        notice_s=2.4,
        plan_s=2.45,
        resumed_s=2.5,
        redone=3,
        operations=9,
        members=3,
        period_s=0.4,
        reason="1 of 4 workers is missing",
    ),
    ConnectionDropped(at_s=2.5, who="worker 1.0", reason="sent Halt"),
    JoinFailed(at_s=2.6, worker="1.0", reason="ended while it copied"),
    WorkerJoined(at_s=2.7, worker="1.0", stage=1, step=1, copied_bytes=2_100_000, took_s=0.4),
    WorkerMoved(
        at_s=2.8, worker="0.0", from_stage=0, to_stage=1, step=1, reason="stage 1 is starved"
    ),
    IntervalChosen(at_s=2.8, first=12, every=4, reason="a step takes 1 s"),
    WentBack(at_s=2.9, lost_stage=1, to_step=1, checkpoint="run/step-1", reason="1.1 was the last"),
    ReplayBegan(
        at_s=2.9, stages=(1,), replayed=(0, 1), from_step=2, to_step=5, workers=("0.2", "0.3")
    ),
    StageRebuilt(
        at_s=2.95,
        stages=(1,),
        replayed=(0, 1),
        version=5,
        workers=("0.2", "0.3"),
        operations=48,
        read_bytes=1_000,
        took_s=0.05,
    ),
    LogChanged(at_s=2.97, worker="0.1", step=6, logging=False, reason="No space left on device"),
    Diagnosed(
        at_s=2.98,
        step=7,
        cause="slow link",
        subject="0.0-0.1",
        factor=3.5,
        excess_s=0.015,
        since=5,
        confidence=0.97,
        evidence="tensors are under way for 21 ms, 6 ms before",
    ),
    SlownessOver(at_s=2.98, step=9, cause="slow link", subject="0.0-0.1", since=8),
    MitigationChosen(
        at_s=2.99,
        step=7,
        action="re-plan",
        subjects=("0.0-0.1",),
        reason="it pays",
        period_s=0.5,
        new_period_s=0.4,
        cost_s=0.1,
    ),
    PlanSwitched(at_s=3.0, step=9, cause="re-plan", took_s=0.01, period_s=0.4, reason="it pays"),
    JoinUnfinished(at_s=3.0, worker="1.0", fault="join @ 6", state="copying the state"),
    WorkerReplaced(at_s=3.0, worker="1.0", number=1, limit=3),
    Warned(at_s=3.0, reason="layer 1 is compiled"),
    WorkerStuck(
        at_s=2.0,
        worker="0.1",
        step=3,
        operation="load",
        microbatch=2,
        seconds=2.1,
        usual_s=0.1,
        where="job.py:3 in __getitem__",
        stack="File ...",
        path="stacks/0.1-7.txt",
    ),
    Interrupted(at_s=2.5),
    RunFailed(at_s=3.0, reason="a \u2028 line\nbreak"),
    RunFinished(
        at_s=3.1,
        parameters_sha256="ab12",
        peak_memory_bytes={"1.0": 5_000},
        kept_bytes={"1.0": 700},
    ),
]


def write(path, events):
    sink = JsonLines.open(path)
    for event in events:
        sink.emit(event)
    sink.close()
    return sink


def test_every_event_comes_back_from_the_file_as_it_was(tmp_path):
    path = tmp_path / "events.jsonl"
    assert write(path, EVENTS).num_dropped == 0
    assert read_events(path) == EVENTS


def test_every_kind_of_event_is_among_those_tested_here():
    assert {type(event) for event in EVENTS} == set(get_args(Event))


def test_a_file_from_before_workers_could_be_replaced_still_loads(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"event": "RunStarted", "at_s": 1.5, "pipelines": 2, "stages": 2, "microbatches": 8, '
        '"steps": 10, "schedule": "1f1b", "reason": "", "cut": [3], "first_step": 0}\n'
        '{"event": "RunFinished", "at_s": 3.1, "parameters_sha256": "ab12", '
        '"peak_memory_bytes": {"1.0": 5000}}\n'
    )
    started, finished = read_events(path)
    assert (started.address, started.limits) == ("", "")
    assert finished.kept_bytes == {}


def test_the_file_is_one_line_of_standard_json_an_event(tmp_path):
    path = tmp_path / "events.jsonl"
    nan = StepFinished(
        at_s=1.0, step=3, loss=math.nan, gradient_norm=math.inf, tokens=1, took_s=0.1
    )
    write(path, [*EVENTS, nan])

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = path.read_text().split("\n")
    assert [json.loads(line, parse_constant=refuse)["event"] for line in lines[:-1]] == [
        type(event).__name__ for event in [*EVENTS, nan]
    ]


def test_a_loss_that_is_not_a_number_comes_back_as_one(tmp_path):
    path = tmp_path / "events.jsonl"
    write(
        path,
        [
            StepFinished(
                at_s=1.0, step=3, loss=math.nan, gradient_norm=math.inf, tokens=1, took_s=0.1
            )
        ],
    )
    [back] = read_events(path)
    assert math.isnan(back.loss)
    assert back.gradient_norm == math.inf


@pytest.mark.parametrize("num_bytes", [1, 5, 12, 40])
def test_a_torn_last_line_is_left_out(tmp_path, num_bytes):
    path = tmp_path / "events.jsonl"
    write(path, EVENTS)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:num_bytes])
    assert read_events(path) == EVENTS


def test_a_file_still_being_written_can_be_read(tmp_path):
    path = tmp_path / "events.jsonl"
    sink = JsonLines.open(path)
    sink.emit(EVENTS[0])
    assert read_events(path) == EVENTS[:1]
    sink.close()


def test_opening_a_file_again_keeps_what_is_in_it(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, EVENTS[:2])
    write(path, EVENTS[2:])
    assert read_events(path) == EVENTS


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        read_events(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "[1, 2]\n",
        "{}\n",
        "17\n",
        '{"event": "Party", "at_s": 1}\n',
        '{"event": "RunFailed", "at_s": 1}\n',
        '{"event": "RunFailed", "at_s": "soon", "reason": ""}\n',
        '{"event": "RunFailed", "at_s": 1, "reason": "", "class": 1}\n',
        '{"event": "WorkerStep", "at_s": 1, "worker": "0.0", "step": 0, "ops": [["0F0", 1]]}\n',
    ],
)
def test_a_foreign_file_is_an_error_that_names_the_line(tmp_path, text):
    path = tmp_path / "events.jsonl"
    write(path, EVENTS[:1])
    with path.open("a") as file:
        file.write(text)
    with pytest.raises(ConfigError, match=r"events\.jsonl:2: "):
        read_events(path)


def test_a_binary_file_is_an_error(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read events"):
        read_events(path)


class FullDisk(io.RawIOBase):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


class AlmostFullDisk(io.RawIOBase):
    def write(self, data):
        return 3


@pytest.mark.parametrize("disk", [FullDisk(), AlmostFullDisk()])
def test_emitting_to_a_full_disk_counts_the_drops_and_raises_nothing(disk):
    sink = JsonLines(disk)
    for event in EVENTS[:3]:
        sink.emit(event)
    assert sink.num_dropped == 3


def test_emitting_after_close_is_a_drop(tmp_path):
    sink = write(tmp_path / "events.jsonl", [])
    sink.emit(EVENTS[0])
    assert sink.num_dropped == 1


def test_a_value_that_json_cannot_hold_is_a_drop(tmp_path):
    sink = JsonLines.open(tmp_path / "events.jsonl")
    sink.emit(RunFailed(at_s=0.0, reason=object()))
    assert sink.num_dropped == 1
    sink.close()


def test_watching_a_run_needs_no_torch():
    code = (
        "import sys, holdfast.observability.view, holdfast.observability.summary, "
        "holdfast.cli.trace; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
