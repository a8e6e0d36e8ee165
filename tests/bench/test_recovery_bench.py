"""What the recovery bench makes of a run's records, and a small sample of it. No timing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.sample_events import sample
from holdfast.config import config_from, parse_assignment, set_value
from holdfast.faults.fault import check_faults, parse_fault
from holdfast.observability.events import (
    Event,
    FaultFired,
    Recovered,
    RunStarted,
    StageRebuilt,
    StepFinished,
    WentBack,
    WorkerStep,
)

BENCH = Path(__file__).parents[2] / "bench"
FAULT = FaultFired(at_s=10.0, worker="0.1", fault="kill 0.1 @ 5", step=4, point="begin")


def outcome(*events: Event) -> Any:
    from recovery_run import outcome

    return outcome(events, FAULT)


def ended(step: int, at_s: float) -> StepFinished:
    return StepFinished(at_s=at_s, step=step, loss=1.0, gradient_norm=1.0, tokens=8, took_s=0.5)


def ran(worker: str, step: int, start_s: float, *ops: str) -> WorkerStep:
    timed = tuple((text, start_s, start_s + 0.02) for text in ops)
    return WorkerStep(at_s=start_s + 0.1, worker=worker, step=step, ops=timed)


def recovered(resumed_s: float, cause: str = "death") -> Recovered:
    return sample(
        Recovered,
        at_s=resumed_s,
        step=4,
        cause=cause,
        workers=("0.1",),
        fault_s=FAULT.at_s,
        notice_s=10.01,
        plan_s=resumed_s - 0.1,
        resumed_s=resumed_s,
        redone=0,
        num_lost=int(cause == "death"),
    )


def went_back(to_step: int) -> WentBack:
    return WentBack(at_s=10.2, lost_stage=1, to_step=to_step, checkpoint="c", reason="no log")


def rebuilt(operations: int) -> StageRebuilt:
    return sample(
        StageRebuilt,
        at_s=10.4,
        replayed=(1,),
        version=4,
        workers=("0.0", "0.2"),
        operations=operations,
        took_s=0.3,
    )


def test_the_clock_stops_when_the_step_in_which_the_worker_died_is_finished_after_the_fault() -> (
    None
):
    found = outcome(ended(3, 9.5), recovered(11.0), ended(3, 11.5), ended(4, 12.0), ended(5, 13.0))
    assert found.working_s == pytest.approx(1.0)
    assert found.finished_s == pytest.approx(2.0)
    assert found.steps_again == found.operations_again == found.num_replayers == 0
    assert found.replay_s is None


def test_a_better_plan_and_a_later_change_are_not_part_of_the_recovery() -> None:
    changes = (recovered(11.0), recovered(11.8, "better plan"), recovered(15.0))
    assert outcome(*changes, ended(4, 12.0)).working_s == pytest.approx(1.0)


def test_after_a_restart_all_work_when_the_last_worker_begins_its_first_operation() -> None:
    started = sample(RunStarted, at_s=14.0, pipelines=1, stages=2, steps=6, first_step=1)
    again = (ran("0.0", 1, 15.0, "0F0"), ran("0.1", 1, 16.0, "1F0"), ran("0.1", 2, 17.0, "1F0"))
    found = outcome(ran("0.0", 1, 5.0, "0F0"), started, *again, ended(4, 20.0))
    assert found.working_s == pytest.approx(6.0)
    assert found.steps_again == 3


def test_operations_again_are_those_before_and_after_the_fault_and_those_of_the_replay() -> None:
    before = (ran("0.0", 3, 9.0, "0F0", "0B0", "0W0", "0R"), ran("0.1", 2, 8.0, "1F0", "1BW0"))
    # The dead had ended step 3 too, but its report never came.
    after = (ran("0.0", 3, 11.0, "0F0", "0BW0", "0R"), ran("0.1", 3, 11.0, "1F0"))
    new = ran("0.0", 4, 11.5, "0F0")
    end = (recovered(11.0), ended(4, 12.0))
    assert outcome(*before, *after, new, *end).operations_again == 4
    assert outcome(*before, new, rebuilt(6), *end).operations_again == 6
    found = outcome(*before, went_back(3), *after, rebuilt(6), *end)
    assert found.operations_again == 10
    assert (found.steps_again, found.replayed_steps, found.num_replayers) == (1, 2, 2)
    assert found.why == "no log"


@pytest.mark.parametrize("quick", [False, True])
def test_every_job_and_way_is_one_that_the_configuration_accepts(quick: bool) -> None:
    from recovery_cases import VARIANTS, WAYS, cases, races

    def check(settings: tuple[str, ...]) -> None:
        values: dict[str, Any] = {}
        for setting in settings:
            set_value(values, *parse_assignment(setting))
        config_from(values)

    for case in cases(quick):
        shape = case.task.shape
        for name in case.ways:
            job = case.job(WAYS[name], case.fault)
            check(tuple(job.settings))
            fault = parse_fault(case.fault)
            check_faults([fault], shape.pipelines, shape.stages, job.steps)
        assert 0 < case.stage < shape.stages - 1, "a worker in the middle"
    for which in races(quick):
        for variant in which.variants:
            check((*which.task.settings, *VARIANTS[variant]))


def test_the_models_know_who_replays() -> None:
    from recovery_cases import HEADLINE, WAYS, cases
    from recovery_run import Clean, crew_size, predicted_s

    case = next(case for case in cases(quick=False) if case.name == HEADLINE)
    sizes = {name: crew_size(case, WAYS[name]) for name in WAYS}
    assert sizes["restart"] == sizes["commit"] == 0
    assert sizes["swift"] == sizes["helpers=0"] == 1
    assert (sizes["helpers=4"], sizes["helpers=-1"]) == (4, 7)
    clean = Clean("", step_s=0.9, forward_s=(0.02,) * 8, backward_s=(0.04,) * 8)
    # 20 steps of 8 micro-batches of 60 ms; SWIFT's model has 15 slots in the step of 0.9 s.
    assert predicted_s(case, clean, 1) == (pytest.approx(9.6), pytest.approx(9.6))
    assert predicted_s(case, clean, 4) == (pytest.approx(2.4), pytest.approx(2.4))


def test_sections_can_be_chosen_and_nonsense_is_refused() -> None:
    from recovery import parse

    assert parse([]).sections == ("overhead", "recovery")
    assert parse([]).rounds >= 5
    assert parse(["--section", "recovery"]).sections == ("recovery",)
    assert parse(["--quick", "--rounds", "3"]).rounds == 3
    for nonsense in (["--rounds", "-1"], ["--repeats", "0"], ["--section", "nothing"]):
        with pytest.raises(SystemExit):
            parse(nonsense)


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(600)
def test_the_recovery_bench_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "recovery.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == [], "a kill that did not fire, or another SHA-256"
    assert found["logging_overhead"] > 0
    assert found["replay_over_restart"] > 0
    assert found["parallel_replay_over_restart"] > 0
    (case,) = found["cases"].values()
    assert found["kills_fired"] == len(case["ways"]) == 3
    assert case["ways"]["restart"]["steps_again"] == 5
    assert case["ways"]["helpers=0"]["steps_again"] == 0
    assert [row["mode"] for row in found["modes"]] == list(case["ways"])
