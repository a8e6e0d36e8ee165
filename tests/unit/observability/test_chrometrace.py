import argparse
import json

import pytest

from helpers.sample_events import sample
from holdfast.cli.looking import trace
from holdfast.errors import ConfigError
from holdfast.observability.chrometrace import chrome_trace
from holdfast.observability.events import (
    FaultFired,
    Recovered,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerLost,
    WorkerStep,
)
from holdfast.observability.log import EventWriter

EVENTS = [
    sample(RunStarted, at_s=100.0, pipelines=2, stages=2),
    WorkerStep(
        at_s=101.0,
        worker="1.0",
        step=7,
        ops=(("0F2", 100.25, 100.5), ("0B2", 100.5, 100.625), ("0W2", 100.625, 100.75)),
    ),
    WorkerStep(
        at_s=101.0,
        worker="0.1",
        step=7,
        ops=(("1F0", 100.0, 100.5), ("1BW0", 100.5, 100.75), ("1R", 100.75, 101.0)),
    ),
    StepTakenBack(at_s=101.0, worker="0.1", step=7, reason="clipped"),
    StepFinished(at_s=101.5, step=7, loss=2.5, gradient_norm=1.0, tokens=1, took_s=1.5),
]


LOST = WorkerLost(at_s=101.25, worker="2.1", step=8, cause="signal SIGKILL")


def recovered(fault_s, resumed_s, cause="death"):
    return sample(
        Recovered,
        at_s=resumed_s,
        step=8,
        cause=cause,
        workers=("2.1",),
        fault_s=fault_s,
        notice_s=fault_s + 0.125,
        plan_s=fault_s + 0.25,
        resumed_s=resumed_s,
        redone=3,
    )


def rows(phase, events=EVENTS):
    return [row for row in chrome_trace(events)["traceEvents"] if row["ph"] == phase]


def test_an_operation_is_a_bar_in_the_row_of_its_worker():
    bar = next(row for row in rows("X") if row["name"] == "0F2")
    assert (bar["pid"], bar["tid"]) == (1, 0)
    assert bar["args"] == {"step": 7, "op": "0F2"}


def test_times_are_microseconds_from_the_start_of_the_run():
    bar = next(row for row in rows("X") if row["name"] == "0F2")
    assert (bar["ts"], bar["dur"]) == (250_000, 250_000)


def test_without_a_start_times_count_from_the_first_operation():
    bars = rows("X", [event for event in EVENTS if isinstance(event, WorkerStep)])
    assert min(bar["ts"] for bar in bars) == 0


def test_each_kind_of_operation_has_a_colour_of_its_own():
    colours = {row["cat"]: row["cname"] for row in rows("X")}
    assert len(colours) == 5
    assert len(set(colours.values())) == 5


def test_pipelines_and_stages_are_named():
    named = {(row["name"], row["pid"], row["tid"]): row["args"] for row in rows("M")}
    assert named["process_name", 1, 0] == {"name": "pipeline 1"}
    assert named["thread_name", 0, 1] == {"name": "stage 1 (worker 0.1)"}


def test_the_end_of_a_step_and_a_step_taken_back_are_marks():
    marks = {row["name"]: row for row in rows("i")}
    assert marks["step 7 finished"]["args"]["loss"] == 2.5
    assert marks["step 7 taken back"]["tid"] == 1


def test_losses_and_faults_are_marks_in_the_row_of_the_worker():
    fired = FaultFired(at_s=101.0, worker="2.1", fault="kill 2.1@9.F0", step=8, point="F0")
    marks = {row["name"]: row for row in rows("i", [*EVENTS, fired, LOST])}
    lost = marks["worker 2.1 lost"]
    assert (lost["pid"], lost["tid"], lost["ts"]) == (2, 1, 1_250_000)
    assert lost["args"] == {"step": 8, "cause": "signal SIGKILL"}
    kill = marks["fault: kill 2.1@9.F0"]
    assert (kill["pid"], kill["tid"], kill["ts"]) == (2, 1, 1_000_000)
    assert kill["args"] == {"step": 8, "point": "F0"}


def test_a_worker_that_was_lost_before_its_first_step_has_a_named_row():
    named = {(row["pid"], row["tid"]): row["args"] for row in rows("M", [*EVENTS, LOST])}
    assert (2, 1) in named


def control_of(events):
    [process] = [row for row in rows("M", events) if row["args"] == {"name": "control"}][:1]
    assert process["name"] == "process_name"
    return process["pid"]


def test_a_recovery_is_a_bar_of_the_control_row_from_the_fault_to_the_last_first_operation():
    events = [*EVENTS, LOST, recovered(101.0, 101.5)]
    [bar] = [row for row in rows("X", events) if row["cat"] == "recovery"]
    assert (bar["pid"], bar["tid"]) == (control_of(events), 0)
    assert (bar["name"], bar["ts"], bar["dur"]) == ("death 2.1", 1_000_000, 500_000)
    assert bar["args"]["seconds_to_notice"] == 0.125
    assert bar["args"]["seconds_to_plan"] == 0.25
    assert bar["args"]["reason"] == "1 of 4 workers is missing"


def test_the_control_row_shares_no_process_with_a_worker():
    events = [*EVENTS, LOST, recovered(101.0, 101.5)]
    workers = {row["pid"] for row in rows("X", events) if row["cat"] != "recovery"} | {2}
    assert control_of(events) not in workers


def test_an_injected_join_is_a_mark_of_the_control_row():
    events = [*EVENTS, FaultFired(at_s=101.0, worker="", fault="join@9", step=8, point="")]
    mark = next(row for row in rows("i", events) if row["name"] == "fault: join@9")
    assert mark["pid"] == control_of(events)


def test_recoveries_that_overlap_get_rows_of_their_own():
    spans = [(101.0, 101.5), (101.25, 102.0), (101.5, 101.75), (102.0, 103.0)]
    events = [*EVENTS, *(recovered(*span) for span in spans)]
    assert [row["tid"] for row in rows("X", events) if row["cat"] == "recovery"] == [0, 1, 0, 0]


def test_a_calm_run_has_no_control_row():
    assert all(row["args"] != {"name": "control"} for row in rows("M"))


def parse(*arguments):
    parser = argparse.ArgumentParser()
    trace.add_parser(parser.add_subparsers())
    return parser.parse_args(["trace", *map(str, arguments)])


@pytest.fixture
def run_dir(tmp_path):
    sink = EventWriter.open(tmp_path / "events.jsonl")
    for event in EVENTS:
        sink.emit(event)
    sink.close()
    return tmp_path


def test_the_command_writes_the_trace_into_the_run_and_says_how_to_open_it(run_dir, capsys):
    args = parse(run_dir)
    assert args.run(args) == 0
    written = json.loads((run_dir / "trace.json").read_text())
    assert written == json.loads(json.dumps(chrome_trace(EVENTS)))
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert f"6 operations to {run_dir / 'trace.json'}" in said
    assert "ui.perfetto.dev" in said


def test_the_command_writes_where_it_is_told(run_dir, tmp_path):
    trace.run(parse(run_dir, "--out", tmp_path / "elsewhere.json"))
    assert (tmp_path / "elsewhere.json").exists()
    assert not (run_dir / "trace.json").exists()


def test_a_missing_run_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        trace.run(parse(tmp_path / "nowhere"))


def test_a_directory_without_events_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"events\.jsonl"):
        trace.run(parse(tmp_path))


def test_a_run_without_times_of_operations_is_an_error(tmp_path):
    sink = EventWriter.open(tmp_path / "events.jsonl")
    sink.emit(EVENTS[0])
    sink.close()
    with pytest.raises(ConfigError, match="holds no times of operations"):
        trace.run(parse(tmp_path))


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(run_dir):
    with pytest.raises(ConfigError, match="choose another --out"):
        trace.run(parse(run_dir, "--out", run_dir / "no" / "folder" / "trace.json"))
