"""``holdfast diagnose``: what it prints, and how it refuses what it cannot read."""

import json
import re
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from helpers.op_traces import Slow, World, columns
from holdfast.api import diagnosing
from holdfast.cli import diagnose
from holdfast.cli.main import main
from holdfast.detection.trace.graph import graph_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SAMPLES = Path(__file__).parents[2] / "data" / "straggler"


def written(path, world=None, **changed):
    rows = columns(world or World(pipelines=2, stages=2, steps=4))
    rows.update(changed)
    pq.write_table(pa.table({key: values for key, values in rows.items() if len(values)}), path)
    return path


def told(capsys, *arguments):
    assert main(["diagnose", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(["diagnose", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("holdfast: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_a_trace_is_told_as_a_table_and_in_sentences(capsys, tmp_path):
    world = World(workers={(3, 1): Slow(1.8, 5)}, links={(0, 2): Slow(0.03)})
    shown = told(capsys, written(tmp_path / "t.parquet", world))
    assert "4 pipelines x 4 stages, 12 steps (0 to 11)" in shown
    assert re.search(r"\nslow computation +3\.1 +5 +the end +x1\.(79|8\d) ", shown)
    assert re.search(r"\nworker 3\.1 is slow, x1\.(79|8\d): its operations take", shown)
    assert "\nlink 0.2-0.3 is slow, +30 ms a transfer" in shown
    assert "in steps 5 to 11 (7 of 12 recorded)" in shown
    assert "Without what is named here a step would take" in shown


def test_of_an_even_trace_nothing_is_said(capsys, tmp_path):
    assert "\nnothing stands out" in told(capsys, written(tmp_path / "t.parquet"))


def test_all_of_it_is_there_as_json(capsys):
    options = ("--meta", SAMPLES / "meta-ST.yaml", "--json")
    values = json.loads(told(capsys, SAMPLES / "trace-ST.parquet", *options))
    assert (values["pipelines"], values["stages"], len(values["steps"])) == (2, 4, 4)
    assert values["slowdown"] == pytest.approx(1.179, rel=0.02)
    assert [cause["cause"] for cause in values["causes"]] == ["imbalance of the model"]
    assert values["causes"][0]["workers"] == ["0.3", "1.3"]
    assert set(values["slowdown_by_worker"]) == {f"{p}.{s}" for p in range(2) for s in range(4)}


def test_times_may_be_in_another_unit(capsys, tmp_path):
    rows = columns(World(pipelines=2, stages=2, steps=4))
    in_ms = {key: rows[key] * 1000 for key in ("start_ts", "duration")}
    path = written(tmp_path / "t.parquet", **in_ms)
    plain = told(capsys, written(tmp_path / "s.parquet")).replace("s.parquet", "t.parquet")
    assert told(capsys, path, "--unit", "ms") == plain


def test_pauses_that_no_operation_explains_are_told(capsys, tmp_path):
    rows = columns(World(pipelines=2, stages=2, steps=4))
    late = rows["start_ts"] + 3.0 * (rows["optype"] == "optimizer-clip-main-grad")
    shown = told(capsys, written(tmp_path / "t.parquet", start_ts=late))
    assert "of a step are pauses that no recorded operation explains" in shown


def test_what_cannot_be_read_is_refused_in_one_line(capsys, tmp_path):
    assert "no such file or directory" in refused(capsys, tmp_path / "none.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("not parquet at all")
    assert "cannot be read as a Parquet file" in refused(capsys, text)
    short = written(tmp_path / "short.parquet")
    short.write_bytes(short.read_bytes()[:-9])
    assert "cannot be read as a Parquet file" in refused(capsys, short)
    assert "holds no events.jsonl" in refused(capsys, tmp_path)


def test_missing_columns_are_named_with_what_was_expected(capsys, tmp_path):
    path = written(tmp_path / "t.parquet", stage=[], seq_id=[])
    shown = refused(capsys, path)
    assert "lacks the columns stage, seq_id: expected dp_rank, stage, step, optype," in shown


def odd_columns():
    num_rows = len(columns(World(pipelines=2, stages=2, steps=4))["step"])
    days = np.full(num_rows, 19723).astype("datetime64[D]")
    return {
        "date": ("dp_rank", pa.array(days), "dp_rank holds values of type datetime64"),
        "timestamp": ("start_ts", pa.array(days.astype("datetime64[us]")), "type datetime64"),
        "flag": ("step", pa.array([True] * num_rows), "step holds values of type bool"),
        "text": ("stage", pa.array(["1"] * num_rows), "stage holds values of type str"),
        "bytes": ("optype", pa.array([b"\xff"] * num_rows), "optype holds values of type bytes"),
        "lists": ("optype", pa.array([["x"]] * num_rows), "optype holds values of type ndarray"),
        "not UTF-8": ("optype", not_utf8(num_rows), "cannot be read as a Parquet file"),
        "nothing": ("optype", pa.nulls(num_rows), "optype holds values of type NoneType"),
        "long": ("optype", pa.array(["x" * 1000] * num_rows), "of 1000 letters; expected names"),
    }


def not_utf8(num_rows):
    ends = np.arange(num_rows + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"\xff" * num_rows)]
    return pa.Array.from_buffers(pa.string(), num_rows, buffers)


@pytest.mark.parametrize(("name", "values", "match"), odd_columns().values(), ids=odd_columns())
def test_a_column_of_the_wrong_type_is_refused(capsys, tmp_path, name, values, match):
    assert match in refused(capsys, written(tmp_path / "t.parquet", **{name: values}))


def test_columns_of_one_name_are_refused(capsys, tmp_path):
    path = written(tmp_path / "t.parquet")
    table = pq.read_table(path)
    pq.write_table(table.append_column("stage", table["stage"]), path)
    assert "cannot be read as a Parquet file: Multiple matches" in refused(capsys, path)


def test_numbers_may_be_decimals_and_unknown_ones_empty(capsys, tmp_path):
    rows = columns(World(pipelines=2, stages=2, steps=4))
    decimals = pa.array([Decimal(str(round(each, 9))) for each in rows["duration"].tolist()])
    path = written(tmp_path / "t.parquet", duration=decimals, mc=pa.nulls(len(decimals)))
    assert "2 pipelines x 2 stages, 4 steps" in told(capsys, path)


def test_an_empty_trace_is_refused(capsys, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pq.read_table(written(path)).slice(0, 0), path)
    assert "holds no operations" in refused(capsys, path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("dp_size: 2\n", "lacks pp_size: expected lines such as"),
        ("", "lacks dp_size and pp_size"),
        ("dp_size: 2\npp_size: two\n", "pp_size: 'two' is not a whole number from 1 to"),
        ("dp_size: 0\npp_size: 2\n", "dp_size: '0' is not a whole number from 1 to"),
        ("dp_size: 2\npp_size: 10000001\n", "pp_size: '10000001' is not a whole number from"),
        (f"dp_size: {'9' * 5000}\npp_size: 2\n", "9' is not a whole number from 1 to 10000000"),
        ("dp_size: 1\npp_size: 2\n", "description says 1 x 2"),
    ],
)
def test_a_description_without_what_is_needed_is_refused(capsys, tmp_path, text, match):
    meta = tmp_path / "meta.yaml"
    meta.write_text(text)
    assert match in refused(capsys, written(tmp_path / "t.parquet"), "--meta", meta)


def test_a_description_that_is_not_there_or_is_of_no_use_is_refused(capsys, tmp_path):
    path = written(tmp_path / "t.parquet")
    assert "cannot be read" in refused(capsys, path, "--meta", tmp_path / "none.yaml")
    assert "is a directory" in refused(capsys, tmp_path, "--meta", path)


def test_without_pyarrow_it_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    path = written(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'holdfast[traces]'" in refused(capsys, path)


def test_long_work_tells_its_progress(capsys, tmp_path, monkeypatch):
    doing = "holdfast: finding the order of"

    def long_work(trace):
        deadline_s = time.monotonic() + 60
        while doing not in sys.stderr.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return graph_of(trace)

    monkeypatch.setattr(diagnose, "QUIET_S", 0.001)
    monkeypatch.setattr(diagnosing, "graph_of", long_work)
    assert main(["diagnose", str(written(tmp_path / "t.parquet"))]) == 0
    assert doing in capsys.readouterr().err
