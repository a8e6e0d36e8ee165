import json
import math
import subprocess
import sys
from typing import get_args

import pytest

from helpers.sample_events import EVENTS
from holdfast.errors import ConfigError
from holdfast.observability.events import Event, StepFinished
from holdfast.observability.log import EventWriter, read_events


def write(path, events):
    sink = EventWriter.open(path)
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
    sink = EventWriter.open(path)
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


def test_watching_a_run_needs_no_torch():
    code = (
        "import sys, holdfast.cli.terminal.view, holdfast.observability.summary, "
        "holdfast.cli.looking.trace; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
