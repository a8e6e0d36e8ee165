"""A world lived through message by message, beside the same world by intervals."""

import argparse
import json

import pytest

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.cli.simulating import simulate
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.simulator.by_messages.lived import live_through
from holdfast.simulator.by_messages.scenario_of import deeds_of
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.intervals.outcome import TimeKind
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind

COSTS = Costs.uniform(2, forward_s=0.5, input_s=0.5, weight_s=0.5, link_s=0.005)
JOB = JobCosts(name="a job", shape=Shape(2, 2, 8), costs=COSTS)
SMALL = "--costs F=1,B=1,W=1 --pipelines 2 --stages 2 --microbatches 4 --mtbf 2m --days 0.005"


def called(words):
    parser = argparse.ArgumentParser()
    simulate.add_parser(parser.add_subparsers())
    return simulate.run(parser.parse_args(["simulate", *words.split()]))


def world(*happened, length_s=300.0):
    return World("a world", 4, 1, length_s, (0, 1, 2, 3), tuple(happened))


def loss(at_s, *machines, notice_s=0.0):
    return WorldEvent(at_s, WorldKind.LOSS, machines, notice_s)


def back(at_s, *machines):
    return WorldEvent(at_s, WorldKind.RETURN, machines)


def rates(one, **more):
    paces = Paces(JOB)
    [other] = compare_policies(one, JOB, ["holdfast"], paces=paces, boot_s=5.0)
    return live_through(one, JOB, paces=paces, boot_s=5.0, **more), other


def test_with_nobody_missing_both_say_the_same():
    messages, intervals = rates(world())
    assert messages.rate == pytest.approx(intervals.rate, rel=0.03)
    assert messages.seconds[TimeKind.STALLED] == 0
    assert sum(messages.seconds.values()) == pytest.approx(300.0)


def test_a_machine_that_goes_and_comes_back_costs_about_the_same():
    messages, intervals = rates(world(loss(50.0, 3), back(150.0, 3)))
    assert messages.num_changes == 2
    assert messages.rate == pytest.approx(intervals.rate, rel=0.15)
    assert messages.rate < 0.9 * messages.fault_free_rate


def test_a_lost_stage_is_replayed_and_training_goes_on():
    messages, _ = rates(world(loss(50.0, 1, 3), back(60.0, 1, 3)))
    assert not messages.reason
    assert messages.seconds[TimeKind.ROLLED_BACK] == 0
    assert 0.5 < messages.goodput < 0.95


def test_a_slow_machine_is_slow_for_as_long_as_the_world_says():
    slow = WorldEvent(50.0, WorldKind.SLOW, (2,), factor=3.0)
    well = WorldEvent(200.0, WorldKind.WELL, (2,))
    messages, _ = rates(world(slow, well))
    for_good, _ = rates(world(slow))
    assert for_good.rate < messages.rate < messages.fault_free_rate * 0.97


def test_who_goes_before_it_has_booted_has_never_come():
    found = deeds_of(world(loss(10.0, 1), back(20.0, 1), loss(22.0, 1), back(40.0, 1)), 5.0)
    comes = [deed for deed in found if deed.what == "comes"]
    assert [(deed.at, deed.words) for deed in comes] == [(45.0, ("m1",))]


def test_a_notice_drains_the_machine_before():
    found = deeds_of(world(loss(30.0, 2, notice_s=10.0)), 5.0)
    assert [str(deed) for deed in found] == ["20 drain m2", "30 dies m2"]


def test_the_same_seed_is_the_same_outcome():
    one = world(loss(50.0, 3), back(150.0, 3))
    assert rates(one, seed=4)[0] == rates(one, seed=4)[0]


def test_the_table_has_a_row_of_its_own(capsys):
    assert called(f"{SMALL} --resolution messages --json") == 0
    values = json.loads(capsys.readouterr().out)
    assert [one["resolution"] for one in values["policies"]] == ["messages", "intervals"]
    assert all(one["samples_s"] > 0 for one in values["policies"])


def test_what_is_too_large_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="128 workers: expected at most 64"):
        called("--resolution messages --model 6.7b --machines 128 --mtbf 2h")
    with pytest.raises(ConfigError, match="without --optimise"):
        called(f"{SMALL} --resolution messages --optimise")
