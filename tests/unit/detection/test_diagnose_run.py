"""``holdfast diagnose RUN_DIR``: what it told, what its recorded times show, how fast it was."""

import json
import math
import random
import re
from dataclasses import replace
from typing import get_type_hints

import pytest

from helpers.sample_events import sample
from holdfast.cli.main import main
from holdfast.detection.live.recorded import look, observed
from holdfast.detection.observation import OpTime
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.observability.events import encode_event
from holdfast.observability.log import EVENTS_FILE

WORKERS = ("0.0", "0.1", "1.0", "1.1")
ONSET, RELIEF, END = 30, 50, 70


def run_events(slow="1.0", factor=2.0, operations=True, told=()):
    """A run of 2 x 2 workers, one of them slow from ONSET until RELIEF."""
    rng = random.Random(0)
    recorded = [
        events.WorkerReady(at_s=0.0, worker=worker, pid=1, versions={}) for worker in WORKERS
    ]
    for step in range(END):
        is_slow = slow is not None and ONSET <= step < RELIEF
        for worker in WORKERS if operations else ():
            speed = factor if is_slow and worker == slow else 1.0
            recorded.append(worker_step(worker, step, speed, rng))
        recorded += [each for each in told if each.step == step]
        took_s = 0.5 * (factor if is_slow else 1.0) * rng.gauss(1.0, 0.01)
        recorded.append(
            events.StepFinished(
                at_s=step, step=step, loss=1.0, gradient_norm=1.0, tokens=100, took_s=took_s
            )
        )
    return recorded


def worker_step(worker, step, speed, rng):
    stage, at_s, ops = int(worker[-1]), float(step), []
    for kind, took_s in (("F", 0.04), ("B", 0.04), ("W", 0.04)):
        for microbatch in range(3):
            end_s = at_s + took_s * speed * rng.gauss(1.0, 0.02)
            ops.append((f"{stage}{kind}{microbatch}", at_s, end_s))
            at_s = end_s
    ops.append((f"{stage}R", at_s, at_s + 0.2))
    times = tuple(end_s - start_s for _, start_s, end_s in ops)
    sizes = (64,) * len(ops)
    return events.WorkerStep(
        at_s=at_s, worker=worker, step=step, ops=tuple(ops), cpu_s=times, sizes=sizes
    )


def diagnosed(**changes):
    slow = {"cause": "slow computation", "subject": "1.0", "excess_s": 0.0, "confidence": 0.9}
    return sample(events.Diagnosed, **{**slow, **changes})


TOLD = (
    diagnosed(step=33, factor=2.1, since=ONSET, evidence="its operations take longer"),
    sample(events.MitigationChosen, step=34, subjects=("1.0",), reason="it pays within 3 steps"),
    diagnosed(step=40, factor=2.6, since=39, evidence="its operations take longer still"),
    events.SlownessOver(at_s=52.0, step=52, cause="slow computation", subject="1.0", since=RELIEF),
)


IN_FORCE = sample(events.Recovered, step=35, cause="better plan", workers=(), resumed_s=34.2)


def written(tmp_path, recorded):
    lines = [encode_event(event) for event in recorded]
    (tmp_path / EVENTS_FILE).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_slow_worker_is_found_in_the_times_of_a_run_that_only_recorded():
    outcome = look("a run", run_events())
    assert outcome.by_run == ()
    (found,) = outcome.by_replay
    assert (found.cause, found.subject) == ("slow computation", "1.0")
    assert abs(found.since - ONSET) <= 1
    assert ONSET <= found.told <= ONSET + 8
    assert abs(found.until - RELIEF) <= 1
    assert found.factor == pytest.approx(2.0, rel=0.1)


def test_speeds_are_told_before_during_and_after():
    (found,) = look("a run", run_events()).by_replay
    assert found.speeds.before_s == pytest.approx(0.5, rel=0.05)
    assert found.speeds.during_s == pytest.approx(1.0, rel=0.05)
    assert found.speeds.mitigated_s is None
    assert found.speeds.after_s == pytest.approx(0.5, rel=0.05)


def test_nothing_is_found_in_a_run_in_which_nothing_was_slow():
    outcome = look("a run", run_events(slow=None))
    assert (outcome.by_run, outcome.by_replay) == ((), ())
    assert outcome.num_worker_steps == END * len(WORKERS)


def test_what_the_run_told_is_one_slowness_from_its_first_word_to_its_last():
    (found,) = look("a run", run_events(told=TOLD)).by_run
    assert (found.since, found.told, found.until, found.factor) == (ONSET, 33, RELIEF, 2.6)
    assert found.speeds.during_s == pytest.approx(1.0, rel=0.05)
    assert found.speeds.mitigated_s is None  # it was chosen, but never came into force


def test_of_all_factors_that_were_told_the_largest_counts_with_its_evidence():
    begun, chosen, worse, over = TOLD
    better = replace(worse, step=45, factor=1.14, evidence="nearly over")
    (found,) = look("a run", run_events(told=(begun, chosen, worse, better, over))).by_run
    assert (found.factor, found.evidence) == (2.6, worse.evidence)


SWITCHED = events.PlanSwitched(
    at_s=35.0, step=35, cause="better plan", took_s=0.1, period_s=0.6, reason="faster"
)


@pytest.mark.parametrize("change", [IN_FORCE, SWITCHED], ids=["with a stop", "without"])
def test_a_plan_that_came_into_force_ends_the_time_without_help(change):
    recorded = run_events(told=(*TOLD[:2], change, *TOLD[2:]))
    first = 35 + isinstance(change, events.Recovered)
    faster = [
        replace(e, took_s=0.6)
        if isinstance(e, events.StepFinished) and first <= e.step < RELIEF
        else e
        for e in recorded
    ]
    speeds = look("a run", faster).by_run[0].speeds
    assert speeds.during_s == pytest.approx(1.0, rel=0.05)
    assert speeds.mitigated_s == 0.6


def test_a_change_for_another_reason_is_not_taken_for_one_against_slowness():
    (found,) = look("a run", run_events(told=(TOLD[0], IN_FORCE, TOLD[3]))).by_run
    assert found.speeds.mitigated_s is None


def test_a_choice_to_do_nothing_is_no_change_of_plan():
    nothing = sample(events.MitigationChosen, step=34, action="nothing", new_period_s=0.5)
    assert nothing.period_s == nothing.new_period_s
    (found,) = look("a run", run_events(told=(TOLD[0], nothing, IN_FORCE, TOLD[3]))).by_run
    assert found.speeds.mitigated_s is None


def test_imbalance_is_told_without_speeds():
    uneven = diagnosed(step=20, cause="imbalance of the model", subject="stage 1", since=2)
    (found,) = look("a run", run_events(slow=None, told=(uneven,))).by_run
    assert (found.subject, found.speeds) == ("stage 1", None)


def test_the_slowness_of_a_worker_ends_when_it_is_lost():
    gone = ONSET + 10
    lost = events.WorkerLost(at_s=0.0, worker="1.0", step=gone, cause="signal SIGKILL")
    outcome = look("a run", [
        *(e for e in run_events(told=(TOLD[0],)) if getattr(e, "step", -1) < gone),
        lost,
        *(e for e in run_events() if getattr(e, "step", -1) >= gone and of_others(e)),
    ])  # fmt: skip
    assert [each.until for each in outcome.by_run] == [gone]
    assert [each.until for each in outcome.by_replay] == [gone]


def of_others(event):
    return not isinstance(event, events.WorkerStep) or event.worker != "1.0"


def test_a_step_is_observed_without_its_reduction_and_by_the_stage_of_most_operations():
    event = events.WorkerStep(
        at_s=9.0,
        worker="1.0",
        step=4,
        ops=(("0F0", 0.0, 1.0), ("1F2", 1.0, 1.5), ("0BW3", 1.5, 3.0), ("0R", 3.0, 9.0)),
        cpu_s=(0.9, 0.4, 1.4, 0.1),
        sizes=(64, 32, 64, 0),
        transfers=(("0.0", "pipeline", 2, 100, 0.01),),
    )
    seen = observed(event)
    assert (str(seen.worker), seen.stage, seen.step) == ("1.0", 0, 4)
    assert seen.ops == (OpTime("F", 0, 0.0, 1.0, 0.9, 64), OpTime("BW", 3, 1.5, 3.0, 1.4, 64))
    assert [(str(t.source), *t[1:]) for t in seen.transfers] == [("0.0", "pipeline", 2, 100, 0.01)]


def test_the_report_says_who_and_how_fast_and_counts_steps_from_one(capsys, tmp_path):
    fault = events.FaultFired(
        at_s=1.0, worker="1.0", fault="slow 1.0 @ 31-50 x2.0", step=ONSET, point="begin"
    )
    assert main(["diagnose", str(written(tmp_path, run_events(told=(fault, *TOLD))))]) == 0
    shown = capsys.readouterr().out
    assert f"{END} steps, 0.5" in shown
    assert "step 31  injected fault: slow 1.0 @ 31-50 x2.0" in shown
    assert (
        "told by the run itself:\n  slow computation: 1.0 x2.60 from step 31 until step 50, "
        "told in step 34 (90% sure): its operations take longer still\n    a step: before 0."
    ) in shown
    assert re.search(r"step 35: mitigation of 1\.0: .*it pays within 3 steps", shown)
    assert "found in the recorded times:\n  slow computation: 1.0 x" in shown
    assert "only in the recorded times" not in shown


@pytest.mark.parametrize(("samples", "counted"), [(100, "samples"), (10, "tokens")])
def test_the_report_counts_samples_where_a_job_has_no_tokens(capsys, tmp_path, samples, counted):
    start = sample(events.RunStarted, samples=samples)
    assert main(["diagnose", str(written(tmp_path, [start, *run_events()]))]) == 0
    assert f" {counted} a second\n" in capsys.readouterr().out


def test_the_same_choice_step_after_step_is_told_once(capsys, tmp_path):
    again = [replace(TOLD[1], step=step) for step in (34, 35, 36)]
    assert main(["diagnose", str(written(tmp_path, run_events(told=(TOLD[0], *again))))]) == 0
    shown = capsys.readouterr().out
    assert shown.count("it pays within 3 steps") == 1
    assert "  step 35 to 37: mitigation" in shown


def test_what_only_the_recorded_times_show_is_pointed_out(capsys, tmp_path):
    assert main(["diagnose", str(written(tmp_path, run_events()))]) == 0
    shown = capsys.readouterr().out
    assert "told by the run itself:\n  nothing slow\n" in shown
    assert "only in the recorded times: slow computation of 1.0\n" in shown


def test_a_run_without_times_of_operations_still_tells_its_own_findings(capsys, tmp_path):
    path = written(tmp_path, run_events(operations=False, told=TOLD))
    assert main(["diagnose", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "slow computation: 1.0 x2.60" in shown
    assert "no times of operations were recorded (observe.operations = false)" in shown


def test_all_of_a_run_is_there_as_json(capsys, tmp_path):
    assert main(["diagnose", str(written(tmp_path, run_events(told=TOLD))), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["num_steps"] == END
    assert values["by_run"][0]["subject"] == values["by_replay"][0]["subject"] == "1.0"
    assert values["by_run"][0]["speeds"]["before_s"] == pytest.approx(0.5, rel=0.05)
    assert values["mitigations"][0]["action"] == "re-plan"


def test_a_run_in_which_no_step_has_finished_is_refused(capsys, tmp_path):
    with pytest.raises(ConfigError, match="no step of this run has finished"):
        look("a run", [])
    assert main(["diagnose", str(written(tmp_path, run_events()[:4]))]) == 2
    assert capsys.readouterr().err.count("\n") == 1


WORKER_STEP = run_events()[len(WORKERS)]
FINISHED = run_events(operations=False)[-1]
SOME_OPS = {"ops": (("0F0", 0.0, 1.0),), "cpu_s": (1.0,), "sizes": (1,)}


@pytest.mark.parametrize(
    ("event", "changed", "match"),
    [
        (TOLD[0], {"cause": "a cause of later"}, "'a cause of later' is not a valid Cause"),
        (TOLD[3], {"cause": "a cause of later"}, "'a cause of later' is not a valid Cause"),
        (run_events()[0], {"worker": "zz"}, "not a worker: 'zz'"),
        (WORKER_STEP, {"worker": "zz"}, "not a worker: 'zz'"),
        (WORKER_STEP, {"cpu_s": (1.0,)}, "zip"),
        (WORKER_STEP, {"ops": (("F", 0.0, 1.0),)}, "'F'"),
        (WORKER_STEP, {**SOME_OPS, "cpu_s": (math.nan,)}, "nan s; expected finite times"),
        (WORKER_STEP, {**SOME_OPS, "ops": (("0F0", 1.0, 0.5),)}, "-0.5 s; expected finite"),
        (WORKER_STEP, {"transfers": (("0.0", "pipeline", 1, 1, math.inf),)}, "inf s; expected"),
        (FINISHED, {"took_s": math.nan}, "nan s; expected finite times"),
        (FINISHED, {"took_s": -1.0}, "-1.0 s; expected finite times"),
    ],
)
def test_an_event_that_means_nothing_here_is_refused_in_one_line(
    capsys, tmp_path, event, changed, match
):
    recorded = [*run_events(), replace(event, **changed)]
    assert main(["diagnose", str(written(tmp_path, recorded))]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"{type(event).__name__} with at_s = " in shown
    assert "not written by this version of Holdfast: " in shown
    assert match in shown


def refused_line(capsys, tmp_path, line):
    path = written(tmp_path, run_events(operations=False)) / EVENTS_FILE
    number = len(path.read_text().splitlines()) + 1
    path.write_text(path.read_text() + line + "\n")
    assert main(["diagnose", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert f"{EVENTS_FILE}:{number}: not written by this version of Holdfast: " in shown
    return shown


@pytest.mark.parametrize("wrong", [{"x": [1]}, [[1]], [{}], True, None, 10**400, "zz"], ids=repr)
def test_no_field_takes_a_value_of_another_type(wrong):
    taken = set()
    for event in (*TOLD, IN_FORCE, WORKER_STEP, FINISHED, run_events()[0]):
        values = json.loads(encode_event(event))
        for name in values.keys() - {"event"}:
            try:
                events.decode_event(json.dumps({**values, name: wrong}))
            except ValueError:
                continue
            taken.add(get_type_hints(type(event))[name])
    fits = {True: {float, float | None, bool}, None: {float | None}, "zz": {str}}
    assert taken <= (fits.get(wrong, set()) if isinstance(wrong, bool | str | None) else set())


def test_events_of_other_types_are_refused_with_their_line(capsys, tmp_path):
    values = json.loads(encode_event(TOLD[0]))
    for name, wrong in (("step", None), ("since", "1"), ("since", 2**63), ("subject", ["1.0"])):
        assert "expected" in refused_line(capsys, tmp_path, json.dumps({**values, name: wrong}))
    refused_line(capsys, tmp_path, "[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("event", [TOLD[0], TOLD[3], FINISHED], ids=["since", "until", "finished"])
def test_a_step_far_away_costs_no_time(event):
    far = {"step" if event is FINISHED else "since": 10**15}
    told = [replace(each, **far) if each is event else each for each in TOLD]
    recorded = run_events(operations=False, told=told)
    if event is FINISHED:
        recorded.append(replace(event, **far))
    assert len(look("a run", recorded).by_run) == 1


def test_a_directory_with_foreign_events_is_refused_in_one_line(capsys, tmp_path):
    (tmp_path / EVENTS_FILE).write_text('{"event": "Nothing we know"}\n')
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "not written by this version" in capsys.readouterr().err
