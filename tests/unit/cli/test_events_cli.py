"""``holdfast events``: every event of a run, in forms that others read."""

import csv
import json
import sys

import pytest

from helpers.sample_events import EVENTS
from holdfast.cli.main import main
from holdfast.observability.events import StepFinished, WorkerStep, encode_event
from holdfast.observability.events.schema import json_schema
from holdfast.observability.log import EVENTS_FILE, RunLog, read_events
from synthetic_run import BEGAN_S, UNIX_S, make_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """In many files, some of them compressed."""
    return make_run(tmp_path_factory.mktemp("events") / "run", 120, 4, limit_bytes=150_000)


def refused(capsys, *words):
    assert main(["events", *map(str, words)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_lines_of_all_files_become_one_file(run_dir, tmp_path, capsys):
    out = tmp_path / "new" / "all.jsonl"
    assert main(["events", str(run_dir), "--to", "jsonl", "--out", str(out)]) == 0
    every = read_events(run_dir / EVENTS_FILE)
    assert read_events(out) == every
    assert f"wrote {len(every)} events to {out}" in capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ["all.jsonl"]


def test_lines_can_be_printed(run_dir, capsys):
    assert main(["events", str(run_dir), "--to", "jsonl", "--out", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == [
        type(event).__name__ for event in read_events(run_dir / EVENTS_FILE)
    ]


def test_tables_as_parquet_and_as_csv_have_the_same_rows(run_dir, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    for to in ("parquet", "csv"):
        assert main(["events", str(run_dir), "--to", to, "--out", str(tmp_path / to)]) == 0
    assert "wrote 120 steps, " in capsys.readouterr().out
    for name in ("steps", "operations", "transfers", "events"):
        table = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        rows = rows_of(tmp_path / "csv" / f"{name}.csv")
        assert table.num_rows == len(rows) > 0
        as_text = [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in table.to_pylist()
        ]
        assert as_text == rows


def test_the_tables_are_the_events(run_dir, tmp_path):
    assert main(["events", str(run_dir), "--to", "csv", "--out", str(tmp_path)]) == 0
    log = RunLog.open(run_dir)
    steps = rows_of(tmp_path / "steps.csv")
    assert [float(row["loss"]) for row in steps] == log.steps.loss.tolist()
    assert float(steps[0]["unix_s"]) - float(steps[0]["at_s"]) == UNIX_S - BEGAN_S
    rare = rows_of(tmp_path / "events.csv")
    assert [row["event"] for row in rare] == [type(event).__name__ for event in log.rare]
    assert rare[0]["unix_s"] == ""  # before the launch has said what time it is
    [last] = [row for row in rare if row["event"] == "WorkerLost"]
    assert (last["worker"], json.loads(last["values"])["cause"]) == ("0.0", "signal SIGKILL")
    every = read_events(run_dir / EVENTS_FILE)
    work = [event for event in every if isinstance(event, WorkerStep)]
    operations = rows_of(tmp_path / "operations.csv")
    assert len(operations) == sum(len(event.ops) for event in work)
    first, (text, start_s, _) = operations[0], work[0].ops[0]
    assert (first["operation"], float(first["start_s"])) == (text, start_s)
    assert text == f"{first['stage']}{first['kind']}{first['microbatch']}"
    assert len(rows_of(tmp_path / "transfers.csv")) == sum(len(e.transfers) for e in work)


def test_every_kind_of_event_has_a_row(tmp_path):
    (tmp_path / EVENTS_FILE).write_text("".join(f"{encode_event(e)}\n" for e in EVENTS))
    assert main(["events", str(tmp_path), "--to", "parquet"]) == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "exports" / "events" / "events.parquet")
    rare = [e for e in EVENTS if not isinstance(e, StepFinished | WorkerStep)]
    assert table["event"].to_pylist() == [type(event).__name__ for event in rare]


def test_the_schema_is_printed(capsys):
    assert main(["events", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_bad_input_is_one_line(run_dir, tmp_path, capsys, monkeypatch):
    assert "RUN_DIR is missing" in refused(capsys)
    assert "no such directory" in refused(capsys, tmp_path / "none", "--to", "jsonl")
    assert not (tmp_path / "none").exists()
    assert "holds no events.jsonl" in refused(capsys, tmp_path, "--to", "csv")
    assert list(tmp_path.iterdir()) == []
    assert "give a folder" in refused(capsys, run_dir, "--to", "csv", "--out", "-")
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "x"
    assert "choose another --out" in refused(capsys, run_dir, "--to", "csv", "--out", where)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'holdfast[traces]'" in refused(capsys, run_dir)


def test_a_file_that_breaks_off_leaves_no_half_of_a_table(run_dir, tmp_path, capsys):
    broken = tmp_path / "run"
    broken.mkdir()
    text = encode_event(EVENTS[0])
    (broken / EVENTS_FILE).write_text(f"{text}\nnothing of ours\n")
    assert "events.jsonl:2: not written" in refused(capsys, broken, "--to", "csv")
    assert list((broken / "exports" / "events").iterdir()) == []
