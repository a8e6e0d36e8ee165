"""What the fail-stop bench makes of a run's records, and a small sample of it. No timing."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.sample_events import sample
from holdfast.baselines.published import rerouted_s
from holdfast.faults.fault import check_faults, parse_fault
from holdfast.observability.events import Event, Recovered, WorkerStep
from holdfast.schedule.operation import Kind, Shape
from holdfast.schedule.validity import check

BENCH = Path(__file__).parents[2] / "bench"
SIGNAL_S, NOTICE_S, PLAN_S = 10.0, 10.01, 10.05
SHAPE = Shape(2, 2, 4)


def recovered(resumed_s: float, victim: str = "1.0") -> Recovered:
    return sample(
        Recovered,
        at_s=resumed_s,
        step=3,
        workers=(victim,),
        fault_s=NOTICE_S,
        notice_s=NOTICE_S,
        plan_s=PLAN_S,
        resumed_s=resumed_s,
        redone=1,
    )


def ran(worker: str, *ops: tuple[str, float]) -> WorkerStep:
    """Operations of 0.02 s of step 3."""
    timed = tuple((text, start_s, start_s + 0.02) for text, start_s in ops)
    return WorkerStep(at_s=11.0, worker=worker, step=3, ops=timed)


def records() -> list[Event]:
    """1.0 dies, and its forward of micro-batch 2 with it: 0.0 runs it again, 1.1 waits for that."""
    return [
        ran("0.0", ("0F0", 10.0), ("0F2", 10.06), ("0F3", 10.2)),
        ran("0.1", ("1F0", 10.022), ("1BW0", 10.07)),
        ran("1.1", ("1F2", 10.09)),
        recovered(10.09),
    ]


def trial(events: list[Event]) -> Any:
    from failstop_run import trial_of

    return trial_of(events, SHAPE, "1.0", SIGNAL_S)


def test_the_stall_ends_with_the_next_operation_of_the_last_survivor() -> None:
    found = trial(records())
    assert found.notice_s == pytest.approx(0.01)
    assert found.stopped_s == pytest.approx(0.042)
    assert found.plan_s == pytest.approx(0.05)
    assert found.operation_s == pytest.approx(0.09)
    assert found.resumed_s == pytest.approx(0.09)


def test_a_survivor_that_waits_for_work_done_again_was_ready_before() -> None:
    assert trial(records()).ready_s == pytest.approx(0.07)
    kept = [event for event in records() if getattr(event, "worker", "") != "0.0"]
    # The activation was there all along, so nobody waited for it.
    assert trial([*kept, ran("0.0", ("0F0", 10.0), ("0R", 10.06))]).ready_s == pytest.approx(0.09)


def test_there_is_no_stall_to_tell_before_every_survivor_has_gone_on() -> None:
    assert trial(records()[:2] + records()[3:]) is None
    assert trial(records()[:3]) is None


def test_the_recovery_from_an_earlier_death_of_the_same_worker_does_not_count() -> None:
    assert trial([*records()[:3], recovered(9.0)]) is None
    assert trial([recovered(9.0), *records()]) == trial(records())


def test_an_operation_of_the_victim_ends_no_stall_and_prolongs_none() -> None:
    dead = ran("1.0", ("0F2", 10.0), ("0BW2", 10.3))
    assert trial([dead, *records()]) == trial(records())


def test_re_routing_alone_has_lanes_with_the_published_period_that_split_no_backward() -> None:
    from failstop_pace import DEATHS, MEMORY, problem_of, rerouted

    for dead in DEATHS.values():
        problem = problem_of(dead, {})
        plan = rerouted(problem)
        schedule = plan.schedule()
        check(schedule, MEMORY)
        assert not plan.fleet.problem.staggered
        assert plan.period_s == pytest.approx(rerouted_s(problem))
        assert not {str(worker) for worker in schedule.lanes} & set(dead)
        kinds = {op.kind for lane in schedule.lanes.values() for op in lane}
        assert kinds == {Kind.F, Kind.BW, Kind.R}


def test_the_25_percent_dead_are_one_of_each_stage() -> None:
    from failstop_pace import DEATHS, SIZE, num_whole

    dead = DEATHS["25 % dead, one a stage"]
    assert sorted(int(worker.partition(".")[2]) for worker in dead) == list(range(SIZE.stages))
    assert num_whole(dead) == 1, "nothing to compare with"


def test_sections_can_be_chosen_and_nonsense_is_refused() -> None:
    from failstop import SECTIONS, parse

    assert parse([]).sections == list(SECTIONS)
    assert parse([]).kills == 20
    assert parse(["--quick"]).kills < 20
    assert parse(["--quick", "--kills", "7"]).kills == 7
    assert parse(["--section", "hang"]).sections == ["hang"]
    for nonsense in (["--kills", "-1"], ["--steps", "-1"], ["--section", "nothing"]):
        with pytest.raises(SystemExit):
            parse(nonsense)


@pytest.mark.parametrize(("name", "word"), [("SIGKILL", "kill"), ("SIGSTOP", "hang")])
def test_strikes_are_in_the_step_that_is_waited_for_and_a_worker_comes_back_later(
    name: str, word: str
) -> None:
    from failstop import ABSENT_STEPS, Attack

    attack = Attack(("0.1", "1.0"), signal.Signals[name], "B1")
    faults = [parse_fault(text) for text in attack.faults]
    check_faults(faults, 2, 2, 100)
    joins, hits = faults[:2], faults[2:]
    assert [(hit.kind.value, str(hit.worker)) for hit in hits] == [(word, "0.1"), (word, "1.0")]
    assert [hit.step for hit in hits] == [attack.step(1), attack.step(2)]
    assert [join.step - hit.step for join, hit in zip(joins, hits, strict=True)] == [
        ABSENT_STEPS
    ] * 2
    assert attack._replace(point="").faults == attack.faults[:2]


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_fail_stop_bench_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "failstop.py"), "--quick", "--section", "stall", "--kills=1"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert 0 < found["ready_s"]["2x2"] <= found["stall_s"]["2x2"] <= found["most_stall_s"]["2x2"]
