"""What a run's processes took, read from its events, and what a simulated run makes of it."""

import random
from itertools import pairwise

import pytest

from helpers.sample_events import sample
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.simulator.costs.measured_times import RecordedTimes, measured_times, warm_steps
from holdfast.simulator.messages.scenario import Scenario
from holdfast.simulator.messages.virtual_run import VirtualRun

CALM = range(7, 12)
TIMES = RecordedTimes(
    {
        **{f"{stage}{kind}": (0.1,) for stage in range(2) for kind in ("F", "B", "W")},
        **{f"{stage}R": (0.01,) for stage in range(2)},
        "link": (0.001,),
    }
)


def simulated(*faults, measured=TIMES, settings=("workers.replace=0",), steps=12):
    emulated = "device.emulate=F=100ms,B=100ms,W=100ms"
    scenario = Scenario(
        seed="1",
        shape=Shape(2, 2, 8),
        steps=steps,
        settings=("checkpoint.at_end=false", emulated, *settings),
        faults=faults,
        measured=measured,
    )
    world = VirtualRun(scenario)
    world.run(500.0)
    assert world.is_over, world.failure
    assert world.failure is None
    return world.events


def with_rows(**rows):
    return RecordedTimes({**TIMES.rows, **rows})


def steps_s(found):
    ends = [event.at_s for event in found if isinstance(event, events.StepFinished)]
    return [after - before for before, after in pairwise(ends)]


def started(**given):
    return sample(
        events.RunStarted, at_s=100.0, pipelines=1, stages=2, microbatches=1, first_step=0, **given
    )


def calm_step(step):
    """1F0 begins 2 ms after 0F0 has ended; each R takes 4 ms; the next step 6 ms after that."""
    at_s = 101.0 + step
    first = (("0F0", at_s, at_s + 0.1), ("0BW0", at_s + 0.404, at_s + 0.6), ("0R", at_s + 0.6, 0.0))
    first = (*first[:2], ("0R", at_s + 0.6, at_s + 0.994))
    last = (("1F0", at_s + 0.102, at_s + 0.2), ("1BW0", at_s + 0.203, at_s + 0.4))
    return [
        sample(events.WorkerStep, at_s=at_s + 1, worker="0.0", step=step, ops=first, transfers=()),
        sample(
            events.WorkerStep,
            at_s=at_s + 1,
            worker="0.1",
            step=step,
            ops=(*last, ("1R", at_s + 0.4, at_s + 0.404)),
            transfers=(("0.0", "pipeline", 1, 64, 0.002), ("0.0", "probe", 1, 64, 9.0)),
        ),
    ]


def calm_run():
    return [started(), *(event for step in range(CALM.stop) for event in calm_step(step))]


# --- reading ---


def test_rows_are_what_lies_between_operations():
    found = measured_times("a run", calm_run())
    assert found.usual_s("0F") == pytest.approx(0.1)
    assert found.usual_s("link") == pytest.approx(0.002)
    assert found.usual_s("turn") == pytest.approx(0.006)
    assert found.usual_s("gap") == pytest.approx(0.003)
    assert found.usual_s("1R") == pytest.approx(0.004)


def test_what_is_drawn_has_the_mean_of_what_was_seen():
    run = calm_run()
    late = run[-2]
    assert isinstance(late, events.WorkerStep)
    (name, start_s, _), *others = late.ops
    run[-2] = sample(
        events.WorkerStep, worker="0.0", step=11, ops=((name, start_s, start_s + 0.3), *others)
    )
    row = measured_times("a run", run).rows["0F"]
    assert sum(row) / len(row) == pytest.approx((0.1 * 4 + 0.3) / 5)


def test_a_death_and_a_start_are_measured_too():
    run = [
        *calm_run(),
        sample(events.Recovered, cause="death", workers=("0.1",), fault_s=120.0, notice_s=120.02),
        sample(events.WorkerReplaced, at_s=121.0, worker="0.1"),
        sample(events.WorkerReady, at_s=122.5, worker="0.1"),
    ]
    found = measured_times("a run", run)
    assert found.usual_s("death") == pytest.approx(0.02)
    assert found.usual_s("start") == pytest.approx(1.5)


def test_operations_after_the_first_fault_do_not_count():
    run = calm_run()
    fault = sample(events.FaultFired, worker="0.1", step=9)
    run.insert(len(run) - 4, fault)
    assert len(measured_times("a run", run).rows["0F"]) == len(CALM) - 2


@pytest.mark.parametrize("run", [[], [started()], [started(), *calm_step(0)]])
def test_a_run_that_says_nothing_is_refused(run):
    with pytest.raises(ConfigError, match="a run: "):
        measured_times("a run", run)


def test_larger_layouts_are_warm_later():
    assert [warm_steps(Shape(*one)) for one in ((2, 2, 8), (4, 4, 16))] == [7, 16]


def test_a_backward_that_was_seen_in_halves_is_both():
    dice = random.Random(0)
    assert TIMES.operation_s(Op(0, Kind.BW, 0), dice) == pytest.approx(0.2)
    assert RecordedTimes({"0BW": (0.2,)}).operation_s(Op(0, Kind.W, 0), dice) == pytest.approx(0.1)
    assert TIMES.operation_s(Op(5, Kind.F, 0), dice) is None


# --- in a simulated run ---


def test_a_step_takes_what_was_measured():
    """Four micro-batches a pipeline: 12 operations, with a reduction and two rounds of words."""
    usual = sorted(steps_s(simulated()))[5]
    assert 1.21 <= usual <= 1.26
    slower = sorted(steps_s(simulated(measured=with_rows(gap=(0.01,)))))[5]
    assert slower == pytest.approx(usual + 0.1, abs=0.03)


def test_a_death_is_known_as_late_as_was_measured():
    found = simulated("kill 1.1 @ 6.B1", measured=with_rows(death=(0.5,)))
    [fired] = [event for event in found if isinstance(event, events.FaultFired)]
    [lost] = [event for event in found if isinstance(event, events.WorkerLost)]
    assert lost.at_s - fired.at_s == pytest.approx(0.5, abs=0.01)


def test_what_a_change_takes_is_lost_once():
    measured = (TIMES, with_rows(change=(0.5,)))
    usual, later = (sum(steps_s(simulated("kill 1.1 @ 6.B1", measured=m))) for m in measured)
    assert later == pytest.approx(usual + 0.5, abs=0.2)


def test_who_is_started_again_takes_as_long_as_was_measured():
    kill, settings = "kill 1.1 @ 4.B1", ("workers.replace=3",)

    def joined_s(start_s):
        found = simulated(kill, measured=with_rows(start=(start_s,)), settings=settings, steps=20)
        lost = next(event.at_s for event in found if isinstance(event, events.WorkerLost))
        return next(e.at_s for e in found if isinstance(e, events.WorkerJoined)) - lost

    assert joined_s(8.0) > joined_s(1.0) + 5.0


def test_a_replay_takes_forwards_and_backwards():
    lost = tuple(f"kill {pipeline}.1 @ 9.B1" for pipeline in range(2))
    logged = ("recovery.log=boundary", "checkpoint.every_steps=5")
    times = with_rows(start=(0.1,), build=(0.1,))
    found = simulated(*lost, measured=times, settings=logged, steps=14)
    began = next(event for event in found if isinstance(event, events.ReplayBegan))
    ended = next(event for event in found if isinstance(event, events.StageRebuilt))
    num_steps = began.to_step - began.from_step
    share = 8 // len(began.workers)
    assert num_steps >= 2
    assert ended.at_s - began.at_s >= num_steps * share * 0.3


def test_benchmarks_take_their_time_only_if_that_was_measured():
    usual, slower = (steps_s(simulated(measured=m)) for m in (TIMES, with_rows(benchmark=(0.2,))))
    assert slower[2] > usual[2] + 0.15
    assert slower[-2] == pytest.approx(usual[-2], abs=0.05)


def test_a_search_for_plans_takes_its_trials():
    kill = "kill 1.1 @ 4.B1"
    found = simulated(kill, measured=with_rows(trial=(0.01,)), steps=12)
    assert len(steps_s(found)) == 11
