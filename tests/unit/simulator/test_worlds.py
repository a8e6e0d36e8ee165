"""Worlds: what is generated and read, that it can be written and read again, and bad input."""

import math
import os
import subprocess
import sys

import pytest

from holdfast.errors import ConfigError
from holdfast.simulator.worlds.durations import duration_text, parse_duration_s
from holdfast.simulator.worlds.files import PACKAGED, packaged_trace, read_world, written
from holdfast.simulator.worlds.generate import KINDS, Failures, generated
from holdfast.simulator.worlds.slowness import with_slowness
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind, scaled

DAY_S = 86400.0
OWN = (
    "# world machines={} workers_a_machine=1 length_s=10.0 name=w\n# alive 0\n"
    "at_s,kind,machines,notice_s,factor\n"
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("2h", 7200), ("1.5d", 129600)]
)
def test_a_duration_is_read(text, seconds):
    assert parse_duration_s("--mtbf", text) == seconds


@pytest.mark.parametrize("text", ["", "-2h", "2 weeks", "h", "nan", "0", "1e3"])
def test_what_is_no_duration_is_said_in_one_line(text):
    with pytest.raises(ConfigError, match="expected a time above 0") as raised:
        parse_duration_s("--mtbf", text)
    assert "\n" not in str(raised.value)


def test_a_duration_has_a_short_text():
    assert [duration_text(s) for s in (5.0, 600.0, 7200.0, 2 * DAY_S)] == ["5s", "10m", "2h", "2d"]


# --- generated ---


@pytest.mark.parametrize("kind", KINDS)
def test_failures_come_about_as_often_as_asked(kind):
    failures = Failures(kind=kind, mtbf_s=1800, repair_s=600)
    world = generated(failures, machines=64, length_s=30 * DAY_S, seed=3)
    moments = {event.at_s for event in world.events if event.kind is WorldKind.LOSS}
    assert len(moments) == pytest.approx(30 * DAY_S / 1800, rel=0.15)


def test_a_seed_gives_the_same_world_and_another_seed_another():
    failures = Failures(mtbf_s=3600)
    worlds = [generated(failures, machines=8, length_s=DAY_S, seed=seed) for seed in (1, 1, 2)]
    assert worlds[0] == worlds[1] != worlds[2]


def test_racks_go_together():
    failures = Failures(kind="rack", mtbf_s=3600, rack=4, rack_share=1.0)
    world = generated(failures, machines=16, length_s=DAY_S, seed=1)
    losses = [event for event in world.events if event.kind is WorldKind.LOSS]
    assert max(len(event.machines) for event in losses) == 4
    assert all(len({number // 4 for number in event.machines}) == 1 for event in losses)


def test_maintenance_is_announced_and_takes_the_racks_in_turn():
    failures = Failures(maintenance_every_s=6 * 3600, rack=4)
    world = generated(failures, machines=8, length_s=DAY_S, seed=1)
    losses = [event for event in world.events if event.kind is WorldKind.LOSS]
    assert [event.machines for event in losses] == [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]
    assert all(event.notice_s == 3600 for event in losses)


@pytest.mark.parametrize(("machines", "minutes"), [(1, 60), (8, 60), (16, 30), (9, 20)])
def test_maintenance_may_be_as_often_as_it_is_long(machines, minutes):
    failures = Failures(maintenance_every_s=minutes * 60)
    world = generated(failures, machines=machines, length_s=DAY_S, seed=1)
    assert world.name == f"maintenance every {minutes} min"
    assert world.num_losses >= 11


def test_slow_machines_become_well_again():
    calm = generated(Failures(), machines=128, length_s=7 * DAY_S, seed=1)
    slow = with_slowness(calm, seed=2)
    kinds = [event.kind for event in slow.events]
    assert kinds.count(WorldKind.SLOW) > 20
    assert kinds.count(WorldKind.WELL) > 20
    assert all(event.factor > 1 for event in slow.events if event.kind is WorldKind.SLOW)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "comet"},
        {"mtbf_s": 0.0},
        {"mtbf_s": -1.0},
        {"repair_s": -1.0},
        {"notice_s": math.inf},
        {"rack": 0},
        {"rack_share": 2.0},
    ],
)
def test_failures_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match="expected"):
        Failures(**wrong)


def test_too_many_failures_are_refused():
    with pytest.raises(ConfigError, match="expected at most 1,000,000"):
        generated(Failures(mtbf_s=0.001), machines=2, length_s=DAY_S, seed=0)


def test_more_machines_than_there_can_be_are_refused_before_they_are_made():
    with pytest.raises(ConfigError, match="machines 100,000,000,000,000,000,000: expected"):
        generated(Failures(), machines=10**20, length_s=DAY_S, seed=0)


# --- traces and files ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slow", [False, True])
def test_every_generated_world_is_the_same_after_export(kind, slow):
    failures = Failures(kind=kind, mtbf_s=1800, notice_s=30, maintenance_every_s=20000, rack=3)
    world = generated(failures, machines=9, length_s=DAY_S, seed=3, workers_a_machine=2)
    world = with_slowness(world, seed=4) if slow else world
    assert world.events
    assert read_world(written(world), "file") == world
    assert written(read_world(written(world), "file")) == written(world)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_trace_reads_and_is_the_same_after_export(name):
    world = packaged_trace(name)
    assert read_world(written(world), "file") == world


def test_the_traces_are_those_that_were_published():
    aws, gcp, recycle = map(packaged_trace, PACKAGED)
    assert (aws.machines, len(aws.alive)) == (32, 18)
    assert aws.length_s / 3600 == pytest.approx(11.37, abs=0.01)
    lost = [event for event in aws.events if event.kind is WorldKind.LOSS]
    assert sum(len(event.machines) for event in lost) == 166  # the last one ends the trace
    assert (gcp.machines, len(gcp.alive)) == (64, 55)
    assert (recycle.machines, len(recycle.alive), recycle.length_s) == (24, 24, 381.6 * 60)


def test_a_generated_world_is_the_same_after_export():
    failures = Failures(kind="preemption", mtbf_s=1800, notice_s=120)
    world = with_slowness(generated(failures, machines=16, length_s=DAY_S, seed=5), seed=5)
    assert read_world(written(world), "file") == world


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty: expected a trace"),
        ("a;b;c\n1;2;3\n", "unknown trace format"),
        ("0,add,a\n5,remove,b\n", "expected ms,add"),
        ("0,add,a\n5,add,a\n", "expected ms,add"),
        ("2021-12-11, 11:11:30, x\n2021-12-11, 11:12:30, 3\n", "expected date, time, count"),
        ("minute,workers\n0,3\n", "at least two counts"),
        ("minute,workers\n0,3\n1,-1\n", "none below 0"),
        ("at_s,kind,machines,notice_s,factor\n", "expected '# world"),
        (f"{OWN.format('9' * 5000)}", "expected '# world"),
        (f"{OWN.format('8')}".replace("=10.0", "=1e300"), "at most 10,000 days"),
        (f"0,add,a\n{'9' * 400},add,b\n", "expected ms,add"),
        (f"0,add,a\n{'9' * 5000},add,b\n", "expected ms,add"),
        ("minute,workers\n0,3\n1,99999999999\n", "machines 99,999,999,999: expected a number"),
    ],
)
def test_a_trace_that_cannot_be_read_is_said_in_one_line(text, words):
    with pytest.raises(ConfigError, match=words) as raised:
        read_world(text, "t.csv")
    assert "\n" not in str(raised.value)


def test_a_trace_that_ends_before_the_run_is_said():
    with pytest.raises(ConfigError, match=r"ends after 6.36 h, before the 24.00 h"):
        packaged_trace("recycle").cut_to(DAY_S)


def test_a_trace_can_be_scaled():
    small = packaged_trace("recycle")
    large = scaled(small, 240)
    assert large.mean_alive() == pytest.approx(10 * small.mean_alive())
    assert scaled(small, 12).machines == 12


# --- what a world may be ---


@pytest.mark.parametrize(
    "event",
    [
        (-1.0, WorldKind.LOSS, (0,)),
        (math.nan, WorldKind.LOSS, (0,)),
        (0.0, WorldKind.LOSS, ()),
        (0.0, WorldKind.LOSS, (0,), -5.0),
        (0.0, WorldKind.SLOW, (0,), 0.0, 0.5),
    ],
)
def test_an_event_that_cannot_be_is_refused(event):
    with pytest.raises(ConfigError, match="expected"):
        WorldEvent(*event)


@pytest.mark.parametrize(
    "events",
    [
        (WorldEvent(1.0, WorldKind.LOSS, (2,)),),  # no such machine
        (WorldEvent(2.0, WorldKind.LOSS, (0,)), WorldEvent(1.0, WorldKind.LOSS, (1,))),
        (WorldEvent(1.0, WorldKind.LOSS, (0,)), WorldEvent(2.0, WorldKind.LOSS, (0,))),
        (WorldEvent(1.0, WorldKind.RETURN, (0,)),),
        (WorldEvent(1.0, WorldKind.LOSS, (0, 0)),),
    ],
)
def test_a_world_that_cannot_be_is_refused(events):
    with pytest.raises(ConfigError, match="expected"):
        World("w", 2, 1, 10.0, (0, 1), events)


CODE = """
from holdfast.simulator.worlds.generate import Failures, generated
from holdfast.simulator.worlds.slowness import with_slowness
from holdfast.simulator.worlds.files import packaged_trace, written
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.intervals.optimising import optimised
from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
world = with_slowness(
    generated(Failures(kind="preemption", mtbf_s=1800), machines=6, length_s=40000, seed=1), 1
)
print(written(world), written(packaged_trace("gcp-a100", seed=4)))
job = JobCosts(name="j", shape=Shape(3, 2, 12), costs=Costs.uniform(2, link_s=0.01))
for outcome in compare_policies(world, job, list(BY_NAME)):
    print(repr(outcome.samples), outcome.segments)
for choice in optimised(world, job.laid_out, [1, 2, 3]):
    print(choice[:-1], repr(choice.outcome.samples))
"""


def test_the_same_seed_gives_the_same_under_any_hash_seed():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", CODE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "77")
    ]
    assert outputs[0] == outputs[1] != ""
