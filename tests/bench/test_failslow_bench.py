"""What the fail-slow bench makes of a run's records, and a small sample of it. No timing."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.sample_events import sample
from holdfast.config import config_from, parse_assignment, set_value
from holdfast.faults.fault import check_faults, parse_fault
from holdfast.observability.events import (
    Diagnosed,
    Event,
    FaultFired,
    MitigationChosen,
    PlanSwitched,
    Recovered,
    StepFinished,
    WorkerStep,
)
from holdfast.schedule.validity import check

BENCH = Path(__file__).parents[2] / "bench"
HEALTHY_S, SLOW_S, BETTER_S = 0.25, 0.5, 0.3
NUM_DISTURBED = 30


def ended(times_s: list[float], first: int = 0) -> list[Event]:
    """One step after the other."""
    events: list[Event] = []
    at_s = 100.0
    for step, took_s in enumerate(times_s, start=first):
        at_s += took_s
        events.append(
            StepFinished(at_s=at_s, step=step, loss=1.0, gradient_norm=1.0, tokens=8, took_s=took_s)
        )
    return events


def named(step: int, subject: str, cause: str = "slow computation") -> Diagnosed:
    return sample(Diagnosed, step=step, cause=cause, subject=subject, since=step)


def switched(step: int, cause: str = "re-plan") -> PlanSwitched:
    return PlanSwitched(at_s=0.0, step=step, cause=cause, took_s=0.1, period_s=0.3, reason="")


def chosen(step: int, action: str) -> MitigationChosen:
    return sample(MitigationChosen, step=step, action=action, subjects=("1.0",))


def slow_run(*others: Event) -> list[Event]:
    """Healthy, ten slow steps, the rest of the disturbed ones with other lanes, and after."""
    from failslow_cases import AFTER_STEPS, FIRST

    disturbed = [SLOW_S] * 10 + [BETTER_S] * (NUM_DISTURBED - 10)
    fault = FaultFired(
        at_s=0.0, worker="1.0", fault="slow 1.0 @ 31-60 x2.0", step=FIRST, point="begin"
    )
    times_s = [HEALTHY_S] * FIRST + disturbed + [HEALTHY_S] * AFTER_STEPS
    return [fault, *others, *ended(times_s)]


def measured(*events: Event, acts: bool = True) -> Any:
    from failslow_cases import cases
    from failslow_run import measured

    return measured(events, cases()["2x2 x2"], NUM_DISTURBED, acts=acts)


def test_the_disturbed_steps_count_from_the_first_slow_one_with_detection_and_pauses() -> None:
    found = measured(*slow_run())
    assert found.healthy_s == pytest.approx(HEALTHY_S)
    assert found.step_s == pytest.approx((10 * SLOW_S + 20 * BETTER_S) / 30)
    assert found.steady_s == pytest.approx(BETTER_S)
    assert found.after_s == pytest.approx(HEALTHY_S)


def test_a_pause_between_two_runs_is_part_of_the_step_that_ends_after_it() -> None:
    events = slow_run()
    steps = [event for event in events if isinstance(event, StepFinished)]
    later: list[Event] = [
        replace(event, at_s=event.at_s + 15.0) for event in steps if event.step >= 40
    ]
    before = [event for event in events if event not in steps or event in steps[:42]]
    found = measured(*before, *later)  # steps 40 and 41 ran twice: the second time counts
    assert found.step_s == pytest.approx((10 * SLOW_S + 20 * BETTER_S + 15.0) / 30)


def test_a_run_in_which_nothing_was_slowed_down_or_that_lacks_steps_is_refused() -> None:
    from failstop_run import RunError

    with pytest.raises(RunError, match=r"never fired: slow 1\.0 @ 31-60"):
        measured(*slow_run()[1:])
    with pytest.raises(RunError, match="no record of step 45"):
        measured(*slow_run()[:46])


def test_the_delay_counts_from_the_fault_and_others_that_are_named_are_told() -> None:
    found = measured(
        *slow_run(named(5, "1.0"), named(34, "1.0"), named(36, "0.1"), named(40, "1.0"))
    )
    assert found.delays == {"1.0": 4}
    assert found.wrong == ("0.1",)
    found = measured(*slow_run(named(35, "stage 1", "imbalance of the model")))
    assert found.delays == {"1.0": None}
    assert found.wrong == (), "imbalance is no fault"


def test_actions_are_what_was_done_and_a_change_that_stops_everyone_has_its_time() -> None:
    stop = sample(Recovered, step=40, cause="move", notice_s=10.0, resumed_s=10.25)
    found = measured(*slow_run(chosen(35, "wait"), chosen(40, "re-plan"), stop))
    assert found.actions == ("re-plan @ 40",)
    only_told = measured(*slow_run(chosen(40, "re-plan")), acts=False)
    assert only_told.actions == ()
    assert found.stop_s == pytest.approx(0.25)
    assert measured(*slow_run()).stop_s == 0.0


# --- stalls ---


def test_the_excess_of_a_switch_is_that_over_the_old_pace_before_and_the_new_one_after_it() -> None:
    events = slow_run(switched(40))
    (found,) = measured(*events).switches
    assert found.excess_s == pytest.approx(0.0)
    # The step before the new lanes takes longer: everyone waits for them.
    late: list[Event] = [
        replace(event, at_s=event.at_s + 0.07)
        if isinstance(event, StepFinished) and event.step >= 39
        else event
        for event in events
    ]
    (found,) = measured(*late).switches
    assert (found.step, found.cause) == (40, "re-plan")
    assert found.excess_s == pytest.approx(0.07)


def test_there_is_no_excess_to_tell_if_something_else_changes_around_the_switch() -> None:
    (found,) = measured(*slow_run(switched(31))).switches
    assert found.excess_s is None
    assert [s.excess_s for s in measured(*slow_run(switched(40), switched(42))).switches] == [
        None,
        None,
    ]


def test_a_stall_is_the_longest_time_in_which_nobody_runs_an_operation_less_the_usual_one() -> None:
    from failslow_run import gaps, longest_s, switches

    ends = ended([1.0] * 40)
    ops = {"0.0": ["0F0", "0R"], "0.1": ["1F0", "1R"]}

    def step(worker: str, number: int) -> WorkerStep:
        """Both are busy for 0.4 s each, and one goes on while the other waits."""
        begin_s = 100.0 + number + (0.0 if worker == "0.0" else 0.4)
        forward, reduction = ops[worker]
        late_s = 0.15 if number == 30 and worker == "0.0" else 0.0
        timed = (
            (forward, begin_s + late_s, begin_s + 0.45),
            (reduction, begin_s + 0.45, begin_s + 0.59),
        )
        return WorkerStep(at_s=begin_s + 1, worker=worker, step=number, ops=timed)

    ran: list[Event] = [step(worker, number) for number in range(40) for worker in ops]
    idle = gaps(ran)
    assert longest_s(idle, 110.0, 112.0) == pytest.approx(0.15)
    assert longest_s(idle, 110.0, 110.9) == pytest.approx(0.05), "only the part that lies inside"
    assert longest_s(idle, 110.1, 110.2) == 0.0
    (found,) = switches([*ran, *ends, switched(30)])
    assert found.stall_s == pytest.approx(0.15), "0.3 s instead of 0.15"
    assert switches([*ran, *ends, switched(39)]) == [], "the run ended meanwhile"


# --- shares ---


def test_the_share_removed_is_also_told_of_what_the_bound_allows() -> None:
    from failslow_cases import shares_of

    found = shares_of(step_s=0.32, nothing_s=0.5, healthy_s=0.25, limit_s=0.3)
    assert found["removed"] == pytest.approx(0.72)
    assert found["of_possible"] == pytest.approx(0.9)
    unhurt = shares_of(step_s=0.26, nothing_s=0.255, healthy_s=0.25, limit_s=0.25)
    assert unhurt == {"removed": None, "of_possible": None}
    assert shares_of(0.45, 0.45, 0.25, 0.45)["of_possible"] is None, "nothing is possible"


def test_the_bound_follows_who_is_slow_and_scales_with_the_machine() -> None:
    from failslow_cases import bound_s, cases, predicted_healthy_s

    one, ladder = cases()["4x2 x2"], cases()["ladder"]
    healthy_s = predicted_healthy_s(one)
    # 32 micro-batches of 30 ms over 3.5 workers, in whole ones: 10 for each of the others.
    assert bound_s(one, 60, healthy_s) == pytest.approx(0.3)
    assert bound_s(one, 60, 2 * healthy_s) == pytest.approx(0.6)
    # x1.08 and x1.16 still take 8 (8.64 and 9 of 30 ms), x1.25 takes 7 or all others 9.
    assert bound_s(ladder, 60, healthy_s) == pytest.approx((0.25 * 8.64 + 0.75 * 9) * 0.03)
    assert bound_s(cases()["pipeline link +40ms"], 60, healthy_s) == pytest.approx(0.24)


# --- no harm ---


def test_harm_is_what_steps_with_other_lanes_take_longer_than_those_beside_them() -> None:
    from failslow_run import calm_of, mitigated

    times_s = [0.2] * 40 + [0.25] * 20 + [0.2] * 40
    changes = [switched(40), switched(50, "better plan"), switched(60, "go back")]
    choices = [chosen(38, "re-plan"), chosen(55, "wait"), chosen(58, "go back")]
    events = [*ended(times_s), *changes, *choices, named(38, "0.1")]
    assert mitigated(events, 100) == [range(40, 60)]
    assert mitigated([switched(40)], 100) == [range(40, 100)]
    found = calm_of(events)
    assert found.num_mitigations == 1
    assert found.named == ("0.1 (slow computation)",)
    assert found.lost_s == pytest.approx(20 * 0.05)
    assert found.whole_s == pytest.approx(86 * 0.2 + 20 * 0.05)
    quiet = calm_of(ended(times_s))
    assert (quiet.num_mitigations, quiet.lost_s) == (0, 0.0)


# --- what is run ---


def accepted(settings: tuple[str, ...]) -> None:
    values: dict[str, Any] = {}
    for setting in settings:
        set_value(values, *parse_assignment(setting))
    config_from(values)


@pytest.mark.parametrize("num_steps", [20, 90])
def test_every_case_and_way_is_one_that_holdfast_accepts(num_steps: int) -> None:
    from failslow_cases import FIRST, cases, undisturbed

    for case in cases().values():
        for way in case.ways:
            job = case.job(way, num_steps)
            accepted(tuple(job.settings))
            faults = [parse_fault(text) for text in job.faults]
            check_faults(faults, case.pipelines, 2, job.steps)
            assert min(fault.step for fault in faults) >= FIRST
        assert case.ways[0] == "nothing", "all others are compared with it"
        if "restart" in case.ways:
            assert len(case.subjects) == 1
    for job in undisturbed().values():
        accepted(tuple(job.settings))


def test_the_headline_is_one_slow_worker_with_two_four_and_eight_pipelines() -> None:
    from failslow_cases import cases

    heads = [case for case in cases().values() if case.is_headline]
    amounts = {(case.pipelines, slow.amount) for case in heads for slow in case.slow}
    assert amounts == {(d, factor) for d in (2, 4, 8) for factor in ("x1.5", "x2")}


def test_a_restart_leaves_the_slow_worker_out_of_lanes_that_can_run() -> None:
    from failslow_cases import STAGES, cases, lanes_without

    for case in cases().values():
        if "restart" in case.ways:
            schedule = lanes_without(case, "1.0")
            check(schedule, None)
            assert schedule.shape == case.shape
            assert len(schedule.lanes) == STAGES * case.pipelines - 1
            assert "1.0" not in map(str, schedule.lanes)


def test_cases_ways_and_sections_can_be_chosen_and_nonsense_is_refused() -> None:
    from failslow import SECTIONS, parse
    from failslow_cases import MODES, cases

    everything = parse([])
    assert everything.sections == list(SECTIONS)
    assert [case.name for case in everything.cases] == list(cases())
    assert everything.ways == tuple(MODES)
    some = parse(["--case", "ladder", "--case", "bursts", "--ways", "nothing,falcon"])
    assert [case.name for case in some.cases] == ["ladder", "bursts"]
    assert some.ways == ("nothing", "falcon")
    assert len(parse(["--quick"]).cases) == 1
    for nonsense in (["--ways", "hope"], ["--steps", "3"], ["--case", "none"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            parse(nonsense)


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(420)
def test_the_fail_slow_bench_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "failslow.py"), "--quick", "--section=slow", "--steps=20"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["emulated"] is True
    (case,) = found["cases"].values()
    assert list(case["ways"]) == ["nothing", "holdfast"]
    assert all(row["step_s"] > 0 for row in case["ways"].values())
    assert case["ways"]["nothing"]["num_switches"] == 0
    assert {"worst_share_of_possible_removed", "replan_stall_s", "load"} <= found.keys()
