"""The published form of events: true of all that is written, and of what was written long ago."""

import gzip
import json
import shutil
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from helpers.pages import DOCS, REWRITES
from helpers.sample_events import EVENTS, sample
from holdfast.errors import ConfigError
from holdfast.observability.events import (
    SCHEMA,
    Event,
    RunFinished,
    RunStarted,
    StepFinished,
    encode_event,
    schema,
)
from holdfast.observability.log import EVENTS_FILE, RunLog, read_events

RECORDED = sorted((Path(__file__).parents[2] / "data" / "events").glob("*.jsonl"))
VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())


@pytest.mark.parametrize(
    "path",
    [Path(schema.__file__).with_name(schema.SCHEMA_FILE), DOCS / "reference" / schema.SCHEMA_FILE],
    ids=["package", "docs"],
)
def test_the_published_schema_is_that_of_the_events(path):
    text = json.dumps(schema.json_schema(), indent=1) + "\n"
    if REWRITES:
        path.write_text(text)
    assert path.read_text() == text


def test_it_is_a_schema_and_knows_every_kind():
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())
    assert {kind.__name__ for kind in get_args(Event)} <= set(schema.json_schema()["$defs"])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_what_is_written_is_as_the_schema_says(event):
    VALIDATOR.validate(json.loads(encode_event(event)))


@pytest.mark.parametrize(
    "changes",
    [
        {"event": "Party"},
        {"step": "3"},
        {"loss": "large"},
        {"loss": None},
        {"clipped": 1},
    ],
)
def test_what_is_not_written_is_not_as_the_schema_says(changes):
    event = json.loads(encode_event(sample(StepFinished)))
    assert not VALIDATOR.is_valid({**event, **changes})
    del event["took_s"]
    assert not VALIDATOR.is_valid(event)


def test_there_are_recorded_files_of_every_form():
    assert [path.stem for path in RECORDED] == [
        "0.1.0",
        "0.2.0",
        "last-without-schema",
        f"schema-{SCHEMA}",
    ]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_file_is_as_the_schema_says(path):
    lines = path.read_text().splitlines()
    assert len(lines) > 30
    for line in lines:
        VALIDATOR.validate(json.loads(line))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_file_is_read_by_every_reader(tmp_path, path):
    shutil.copy(path, tmp_path / EVENTS_FILE)
    events, log = read_events(tmp_path / EVENTS_FILE), RunLog.open(tmp_path)
    assert len(events) == len(path.read_text().splitlines())
    [started] = [event for event in log.rare if isinstance(event, RunStarted)]
    assert (started.pipelines, started.stages, started.steps) == (2, 2, 6)
    assert started.schema == (SCHEMA if path.stem == f"schema-{SCHEMA}" else 0)
    assert (started.unix_s > 1.7e9) == (started.schema > 0)
    assert log.steps.step.tolist() == list(range(6))
    assert log.steps.loss[-1] < log.steps.loss[0]
    assert len(log.operations(0, 5)) == len(events) - len(log.rare) - 6
    assert isinstance(log.rare[-1], RunFinished)


def test_a_recorded_file_that_was_compressed_is_read(tmp_path):
    old = RECORDED[0].read_bytes()
    (tmp_path / "events-1.jsonl.gz").write_bytes(gzip.compress(old))
    shutil.copy(RECORDED[1], tmp_path / EVENTS_FILE)
    assert len(read_events(tmp_path / EVENTS_FILE)) == sum(
        len(path.read_text().splitlines()) for path in RECORDED[:2]
    )
    assert RunLog.open(tmp_path).steps.launch.tolist() == [1] * 6 + [2] * 6


def test_a_file_of_a_later_form_is_told_so(tmp_path):
    event = {**json.loads(encode_event(sample(RunStarted))), "schema": SCHEMA + 1, "new": 5}
    (tmp_path / EVENTS_FILE).write_text(json.dumps(event) + "\n")
    for read in (lambda: read_events(tmp_path / EVENTS_FILE), lambda: RunLog.open(tmp_path)):
        with pytest.raises(ConfigError, match=rf"form {SCHEMA + 1} of events: .* up to {SCHEMA}$"):
            read()
