"""Causes in recorded traces: real ones against their published results, and made-up ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.op_traces import Slow, World, columns
from holdfast.api.diagnosing import read_trace
from holdfast.cli.diagnose import read_layout
from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Cause
from holdfast.detection.trace.causes import find_causes
from holdfast.detection.trace.graph import graph_of
from holdfast.detection.trace.stretches import runs
from holdfast.detection.trace.trace import TraceLayout, trace_of
from holdfast.detection.trace.whatif import what_if
from holdfast.errors import ConfigError

SAMPLES = Path(__file__).parents[2] / "data" / "straggler"
PUBLISHED = json.loads((SAMPLES / "published.json").read_text())
REAL = {
    "ST": [(Cause.MODEL, "stage 3")],
    "SE": [(Cause.DATA, "data"), (Cause.MODEL, "stage 1")],
}


def sample(name):
    return read_trace(SAMPLES / f"trace-{name}.parquet", read_layout(SAMPLES / f"meta-{name}.yaml"))


def rows_of(name):
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(SAMPLES / f"trace-{name}.parquet")
    return {key: table[key].to_numpy(zero_copy_only=False) for key in table.column_names}


def causes(rows):
    return find_causes(graph_of(trace_of(rows))).named


def verdict(rows):
    return [(each.cause, each.subject) for each in causes(rows)]


# --- real traces ---


@pytest.mark.parametrize("name", REAL)
def test_the_slowdown_is_the_published_one(name):
    numbers = what_if(graph_of(sample(name)))
    assert numbers.slowdown == pytest.approx(PUBLISHED[name]["slowdown"], rel=0.02)
    assert numbers.ideal_s == pytest.approx(PUBLISHED[name]["ideal_s"], rel=0.02)


@pytest.mark.parametrize("name", REAL)
def test_each_step_replays_in_the_published_time(name):
    graph, published = graph_of(sample(name)), PUBLISHED[name]
    steps = [str(step) for step in graph.trace.steps]
    assert graph.trace.recorded_s() == pytest.approx(
        [published["recorded_s"][step] for step in steps], rel=1e-4
    )
    assert graph.replay(graph.work_s) == pytest.approx(
        [published["replayed_s"][step] for step in steps], rel=0.01
    )


@pytest.mark.parametrize("name", REAL)
def test_the_causes_are_the_published_ones(name):
    found = find_causes(graph_of(sample(name))).named
    assert [(each.cause, each.subject) for each in found] == REAL[name]


@pytest.mark.parametrize("name", REAL)
def test_names_of_ranks_units_order_and_missing_steps_change_no_verdict(name):
    rows, rng = rows_of(name), np.random.default_rng(1)
    renamed = rng.permutation(int(rows["dp_rank"].max()) + 1)
    order = rng.permutation(len(rows["step"]))
    shuffled = {key: values[order] for key, values in rows.items()}
    shuffled["dp_rank"] = renamed[shuffled["dp_rank"]]
    shuffled["rank"] = rng.permutation(1000)[shuffled["rank"]]
    assert verdict(shuffled) == REAL[name]
    longer = {key: rows[key].astype(float) * 1000 for key in ("start_ts", "duration")}
    assert verdict({**rows, **longer}) == REAL[name]
    one_step = rows["step"] == rows["step"].max()
    assert verdict({key: values[one_step] for key, values in rows.items()}) == REAL[name]


# --- made-up traces ---


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 2), (4, 4)])
def test_nothing_is_said_of_an_even_job(shape, noise, seed):
    world = World(*shape, noise=noise, seed=seed)
    graph = graph_of(trace_of(columns(world)))
    assert find_causes(graph).named == ()
    assert what_if(graph).slowdown < 1.06


@pytest.mark.parametrize(
    ("world", "worker"),
    [
        (World(workers={(3, 1): Slow(1.8)}), (3, 1)),
        (World(pipelines=2, workers={(1, 1): Slow(1.3)}), (1, 1)),
        (World(pipelines=2, stages=2, workers={(0, 1): Slow(1.8)}), (0, 1)),
        (World(stages=1, workers={(2, 0): Slow(1.8)}), (2, 0)),
        (World(workers={(3, 1): Slow(1.8)}, noise=0.05), (3, 1)),
        (World(workers={(3, 1): Slow(1.8)}, steps=1), (3, 1)),
    ],
    ids=["4x4", "2x4", "2x2", "one stage", "noisy", "one step"],
)
def test_a_slow_worker_is_named_with_its_factor(world, worker):
    (found,) = causes(columns(world))
    assert (found.cause, found.workers) == (Cause.COMPUTE, (WorkerId(*worker),))
    assert found.subject == str(WorkerId(*worker))
    assert found.factor == pytest.approx(world.workers[worker].amount, rel=0.03)
    assert (found.since, found.until) == (0, None)
    assert found.cost > 0.1


def test_a_worker_that_is_slow_for_some_steps_is_named_with_these_steps():
    (found,) = causes(columns(World(workers={(3, 1): Slow(1.8, 5, 8)})))
    assert (found.subject, found.since, found.until) == ("3.1", 5, 8)
    assert found.cost > 0.4  # of these steps, not of all
    (found,) = causes(columns(World(pipelines=1, workers={(0, 1): Slow(1.8, 8)})))
    assert (found.subject, found.since, found.until) == ("0.1", 8, None)


def test_a_worker_that_is_slower_by_less_than_everyday_noise_is_not_named():
    assert causes(columns(World(workers={(3, 1): Slow(1.06)}, noise=0.0))) == ()


def test_two_slow_workers_are_both_named_though_either_alone_would_hide_the_other():
    found = causes(columns(World(workers={(3, 1): Slow(1.8), (0, 2): Slow(1.5)})))
    assert [(each.subject, round(each.factor, 1)) for each in found] == [("3.1", 1.8), ("0.2", 1.5)]


def test_a_pipeline_that_is_slow_at_every_stage_is_a_machine_not_its_data():
    slow = {(3, stage): Slow(1.6, 3) for stage in range(4)}
    (found,) = causes(columns(World(workers=slow)))
    assert (found.cause, found.subject, found.since) == (Cause.MACHINE, "pipeline 3", 3)
    assert found.workers == tuple(WorkerId(3, stage) for stage in range(4))


def test_a_slow_link_is_named_by_its_two_ends():
    (found,) = causes(columns(World(links={(2, 1): Slow(0.03, 4, 9)})))
    assert (found.cause, found.subject) == (Cause.LINK, "2.1-2.2")
    assert found.workers == (WorkerId(2, 1), WorkerId(2, 2))
    assert (found.since, found.until) == (4, 9)
    assert found.excess_s == pytest.approx(0.03, rel=0.01)


def test_a_slow_collective_is_named_by_its_stage():
    (found,) = causes(columns(World(reduces={0: Slow(0.3)})))
    assert (found.cause, found.subject) == (Cause.LINK, "grads-reduce-scatter of stage 0")
    assert len(found.workers) == 4


def test_a_slow_link_that_costs_nothing_is_not_named():
    assert causes(columns(World(links={(2, 1): Slow(0.001)}))) == ()


def test_a_long_stage_is_the_model_and_a_slow_worker_on_it_is_still_found():
    assert verdict(columns(World(stage_factor={3: 1.5}))) == [(Cause.MODEL, "stage 3")]
    found = causes(columns(World(stage_factor={3: 1.5}, workers={(1, 3): Slow(1.5)})))
    assert [(each.cause, each.subject) for each in found] == [
        (Cause.COMPUTE, "1.3"),
        (Cause.MODEL, "stage 3"),
    ]
    assert [each.factor for each in found] == pytest.approx([1.5, 1.5], rel=0.03)


def test_uneven_micro_batches_are_the_data_and_a_slow_worker_among_them_is_still_found():
    assert verdict(columns(World(sizes=0.3))) == [(Cause.DATA, "data")]
    assert verdict(columns(World(stages=1, sizes=0.3))) == [(Cause.DATA, "data")]
    found = causes(columns(World(sizes=0.3, workers={(3, 1): Slow(1.8)})))
    assert {(each.cause, each.subject) for each in found} == {
        (Cause.COMPUTE, "3.1"),
        (Cause.DATA, "data"),
    }


def test_data_that_are_long_for_some_steps_are_not_taken_for_a_slow_machine():
    world = World(long_data={2: Slow(1.4, 4, 8)}, sizes=0.02)
    assert verdict(columns(world)) == [(Cause.DATA, "data")]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (4, 4)])
def test_few_steps_of_uneven_data_are_not_taken_for_a_slow_machine(shape, seed):
    found = verdict(columns(World(*shape, steps=2, sizes=0.4, seed=seed)))
    assert set(found) <= {(Cause.DATA, "data")}


def test_noise_in_which_forward_and_backward_do_not_go_together_is_not_the_data():
    assert verdict(columns(World(stages=1, noise=0.3))) == []


def test_all_that_uneven_data_cost_is_found_when_backward_grows_faster():
    graph = graph_of(trace_of(columns(World(sizes=0.3, backward_power=1.8))))
    assert find_causes(graph).without_s == pytest.approx(what_if(graph).ideal_s, rel=0.01)


def test_ranks_that_share_a_stage_are_told_apart():
    rows = columns(World(pipelines=2, stages=2, workers={(1, 1): Slow(1.5)}))
    twin = {**columns(World(pipelines=2, stages=2)), "rank": rows["rank"] + 100}
    both = {key: np.concatenate([rows[key], twin[key]]) for key in rows}
    (found,) = causes(both)
    assert (found.cause, found.subject) == (Cause.COMPUTE, "1.1 rank 3")


def test_a_made_up_trace_replays_in_its_own_time():
    world = World(links={(2, 1): Slow(0.03)}, workers={(0, 1): Slow(1.4)}, sizes=0.2)
    graph = graph_of(trace_of(columns(world)))
    assert graph.replay(graph.work_s) == pytest.approx(graph.trace.recorded_s(), rel=1e-9)


# --- bad rows ---


def bad(change, match):
    rows = columns(World(pipelines=1, stages=1, steps=1))
    rows.update(change(rows))
    with pytest.raises(ConfigError, match=match):
        trace_of(rows)


def test_rows_that_make_no_sense_are_refused_by_name():
    bad(lambda rows: {"duration": -rows["duration"]}, "duration holds -0.*expected finite times")
    bad(lambda rows: {"start_ts": rows["start_ts"] * np.nan}, "start_ts holds nan")
    bad(lambda rows: {"stage": rows["stage"] - 1}, "stage holds -1 in .* from 0 to 1e.07")
    bad(lambda rows: {"step": rows["step"] + 0.5}, "step holds 0.5 .*expected whole numbers")
    bad(lambda rows: {"duration": np.array(["x"] * len(rows["step"]))}, "duration .* type str_;")
    bad(lambda rows: {"duration": rows["duration"] + 1e300}, "duration holds 1e.300 .*up to 1e.20")


@pytest.mark.parametrize("value", [1e8, 1e18, 1e30, np.inf])
@pytest.mark.parametrize("name", ["dp_rank", "stage"])
def test_more_pipelines_or_stages_than_any_job_has_are_refused(name, value):
    bad(lambda rows: {name: np.r_[value, rows[name][1:]]}, f"{name} holds .* in 1 of")


@pytest.mark.parametrize("value", [1e16, 1e18, 1e30, np.inf])
@pytest.mark.parametrize("name", ["step", "seq_id", "mb_id", "rank"])
def test_numbers_that_floats_do_not_hold_are_refused(name, value):
    bad(lambda rows: {name: np.r_[value, rows[name][1:]]}, f"{name} holds .* in 1 of")


@pytest.mark.parametrize("name", ["dp_rank", "stage"])
def test_numbers_with_a_gap_too_large_to_work_with_are_refused(name):
    rows = columns(World(pipelines=1, stages=1, steps=1))
    first = int(np.flatnonzero(rows["optype"] == "forward-compute")[0])
    rows[name][first] = 9_000_000
    graph = graph_of(trace_of({**rows, "seq_id": np.arange(len(rows["step"]))}))
    with pytest.raises(ConfigError, match=r"expected numbers without large gaps: check"):
        find_causes(graph)


def test_a_gap_in_the_numbers_of_pipelines_costs_no_time(monkeypatch):
    rows, calls = columns(World(pipelines=2, stages=2, workers={(1, 1): Slow(1.8)})), []
    rows["dp_rank"] = np.where(rows["dp_rank"] == 1, 500, 0)
    for where in ("candidates", "effects"):
        monkeypatch.setattr(
            f"holdfast.detection.trace.{where}.runs", lambda *of: calls.append(of) or runs(*of)
        )
    assert verdict(rows) == [(Cause.COMPUTE, "500.1")]
    assert len(calls) < 50


def test_a_trace_with_hardly_more_operations_than_workers_is_refused():
    numbers = np.arange(2000)
    rows = {name: np.zeros(2000) for name in ("stage", "step", "start_ts", "seq_id", "mb_id")}
    rows |= {"dp_rank": numbers, "duration": np.ones(2000), "optype": np.full(2000, "x-compute")}
    with pytest.raises(ConfigError, match="2000 operations of 2000 workers; expected 4 or more"):
        trace_of(rows)


def test_an_empty_micro_batch_number_is_none_at_all():
    rows = columns(World(workers={(3, 1): Slow(1.8)}))
    empty = np.where(rows["mb_id"] < 0, np.nan, rows["mb_id"])
    assert verdict({**rows, "mb_id": empty}) == verdict(rows)


def test_a_description_of_another_job_is_refused():
    rows = columns(World())
    with pytest.raises(ConfigError, match="4 pipelines x 4 stages, but its description says 2 x 4"):
        trace_of(rows, layout=TraceLayout(2, 4))


def row(stage, kind, number, start_s, end_s):
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mb_id")
    return dict(zip(names, (0, stage, 7, kind, start_s, end_s - start_s, number, -1), strict=True))


def by_column(rows):
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def test_operations_that_wait_for_each_other_in_a_circle_are_refused():
    crossed = [
        *(row(0, "forward-send", 0, 0.0, 1.0), row(0, "forward-send", 1, 2.0, 3.0)),
        *(row(1, "forward-recv", 1, 0.0, 0.5), row(1, "forward-recv", 0, 0.6, 3.0)),
    ]
    graph = graph_of(trace_of(by_column(crossed)))
    with pytest.raises(ConfigError, match="step 7 wait for each other in a circle"):
        graph.replay(graph.work_s)


def test_a_send_that_ended_before_its_receive_began_waited_for_nobody():
    early = [
        *(row(0, "forward-send", 0, 0.0, 1.0), row(0, "forward-compute", 0, 1.0, 2.0)),
        *(row(1, "forward-compute", 0, 0.0, 5.0), row(1, "forward-recv", 0, 5.0, 5.5)),
    ]
    graph = graph_of(trace_of(by_column(early)))
    assert graph.work_s.tolist() == [1.0, 1.0, 5.0, 0.5]
    assert graph.replay(np.array([1.0, 1.0, 0.0, 0.5])).tolist() == [2.0]


def test_a_trace_of_one_operation_or_of_no_time_is_no_trouble():
    for end_s in (1.0, 0.0):
        graph = graph_of(trace_of(by_column([row(0, "forward-compute", 0, 0.0, end_s)])))
        assert what_if(graph).slowdown == 1.0
        assert find_causes(graph).named == ()
