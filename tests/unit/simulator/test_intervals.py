"""Intervals: time adds up, changes cost what the policy says, seats are filled in order."""

import itertools
import math

import pytest

from holdfast.baselines.policies.catalogue import ALL_POLICIES, BY_NAME, make_policy
from holdfast.baselines.policies.constants import PolicyConstants, listed
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.policy import Policy, Reaction, Saving, WorkLost
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.simulator.intervals.comparing import compare_policies
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.optimising import optimised, stage_counts
from holdfast.simulator.intervals.outcome import TimeKind
from holdfast.simulator.intervals.seating import seat_changes
from holdfast.simulator.worlds.generate import Failures, generated
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind


def job_of(pipelines=3, stages=2, each=4, **more):
    shape = Shape(pipelines, stages, pipelines * each)
    return JobCosts(name="j", shape=shape, costs=Costs.uniform(stages, link_s=0.01), **more)


def world_of(*events, machines=6, alive=None, length_s=1000.0):
    alive = tuple(range(machines)) if alive is None else alive
    return World("w", machines, 1, length_s, alive, tuple(events))


def loss(at_s, *machines, notice_s=0.0):
    return WorldEvent(at_s, WorldKind.LOSS, machines, notice_s)


def back(at_s, *machines):
    return WorldEvent(at_s, WorldKind.RETURN, machines)


def slow(at_s, machine, factor=2.0):
    return WorldEvent(at_s, WorldKind.SLOW, (machine,), factor=factor)


class Scripted(Policy):
    """Steps of 10 s; each change is answered by the next of ``answers``."""

    name, title, leaves_out = "holdfast", "scripted", ""
    answers: tuple[Reaction, ...] = ()
    saves = Saving()

    def first(self):
        self._left = list(self.answers)
        return Reaction(period_s=10.0)

    def after(self, change):
        return self._left.pop(0)

    def saving(self, period_s):
        return self.saves


def scripted(*answers, saves=None):
    saves = saves or Saving()
    job = job_of()
    policy = Scripted(job, Paces(job), PolicyConstants())
    policy.answers, policy.saves = answers, saves
    return policy


def lived(policy, *events):
    found = simulate(world_of(*events), policy, boot_s=0.0)
    assert sum(found.seconds.values()) == pytest.approx(found.length_s)
    return found


def steps(outcome):
    return outcome.samples / 12


def test_without_events_every_second_counts():
    found = lived(scripted())
    assert steps(found) == pytest.approx(100)
    assert found.share(TimeKind.EFFECTIVE) == pytest.approx(1)
    assert found.goodput == pytest.approx(1)


def test_a_lost_step_is_done_again():
    answer = Reaction(period_s=20.0, pause_s=30.0, work_lost=WorkLost.STEP)
    found = lived(scripted(answer), loss(105.0, 0))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(5)
    assert found.seconds[TimeKind.STALLED] == pytest.approx(30)
    assert steps(found) == pytest.approx(10 + (1000 - 135) / 20)


def test_the_share_of_the_lost_is_done_again_by_the_others():
    answer = Reaction(period_s=10.0, work_lost=WorkLost.OWN_SHARE)
    found = lived(scripted(answer), loss(105.0, 0))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(5 / 5)


def test_a_rollback_goes_back_to_the_last_checkpoint():
    answer = Reaction(period_s=10.0, work_lost=WorkLost.SINCE_CHECKPOINT)
    found = lived(scripted(answer, saves=Saving(4, 0.0)), loss(115.0, 0))
    assert found.seconds[TimeKind.ROLLED_BACK] == pytest.approx(35)
    assert steps(found) == pytest.approx(8 + 88.5)


def test_a_replay_costs_its_time_and_loses_no_step():
    answer = Reaction(period_s=10.0, replay_s=2.0)
    found = lived(scripted(answer, saves=Saving(4, 0.0)), loss(110.0, 0))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(3 * 2)
    assert steps(found) == pytest.approx(11 + (890 - 6) / 10)


def test_saving_takes_its_share():
    found = lived(scripted(saves=Saving(5, 10.0)))
    assert found.seconds[TimeKind.SAVING] == pytest.approx(1000 / 6)
    assert steps(found) == pytest.approx(1000 / 12)


def test_while_it_cannot_run_it_is_idle():
    stop, again = Reaction(period_s=math.inf), Reaction(period_s=10.0, pause_s=50.0)
    found = lived(scripted(stop, again), loss(100.0, 0), back(300.0, 0))
    assert found.seconds[TimeKind.IDLE] == pytest.approx(200)
    assert found.seconds[TimeKind.STALLED] == pytest.approx(50)


def test_the_rent_is_for_machines_that_are_there():
    answer = Reaction(period_s=10.0)
    found = lived(scripted(answer, answer), loss(500.0, 0), back(750.0, 0))
    assert found.worker_s == pytest.approx(6 * 1000 - 250)
    assert found.cost_a_day(3600 / 86400) == pytest.approx(found.worker_s / 1000)


# --- seats ---


def changes(world, workers=4, boot_s=0.0):
    found = list(seat_changes(world, workers, boot_s))
    return [(each.at_s, each.change.lost, each.change.came, each.live) for each in found]


def test_a_machine_that_waits_takes_the_place_of_one_that_goes():
    assert changes(world_of(loss(5.0, 1), machines=5)) == [
        (0.0, (), (0, 1, 2, 3), 4),
        (5.0, (1,), (1,), 4),
    ]


def test_a_new_machine_is_of_use_when_it_has_booted_unless_it_goes_before():
    story = (loss(5.0, 1), back(10.0, 1), loss(30.0, 1), back(40.0, 1), loss(50.0, 1))
    assert changes(world_of(*story, machines=4), boot_s=15.0) == [
        (0.0, (), (0, 1, 2, 3), 4),
        (5.0, (1,), (), 3),
        (25.0, (), (1,), 4),
        (30.0, (1,), (), 3),
    ]


def test_a_job_that_is_larger_than_the_world_is_refused():
    with pytest.raises(ConfigError, match="expected no more workers than there are places"):
        changes(world_of(), workers=7)


# --- policies ---


def test_every_policy_lives_through_a_bad_day():
    failures = Failures(kind="preemption", mtbf_s=600, repair_s=900, at_once=3)
    world = generated(failures, machines=6, length_s=20000, seed=2)
    job = job_of(3, 2, state_bytes=(1e9,) * 2, link_bytes_s=1e9, memory_bytes=80e9)
    for found in compare_policies(world, job, list(BY_NAME)):
        assert sum(found.seconds.values()) == pytest.approx(world.length_s), found.policy
        assert all(seconds >= -1e-6 for seconds in found.seconds.values()), found.policy
        assert 0 < found.goodput <= 1 + 1e-9, found.policy
        ends = [segment.end_s for segment in found.segments[:-1]]
        starts = [segment.start_s for segment in found.segments[1:]]
        assert ends == pytest.approx(starts)


def test_holdfast_is_ahead_of_everyone_here():
    world = generated(Failures(mtbf_s=1800), machines=48, length_s=40000, seed=2)
    job = job_of(12, 4, each=8, state_bytes=(1e9,) * 4, link_bytes_s=12e9, memory_bytes=80e9)
    ours, *others = compare_policies(world, job, ["holdfast", "recycle", "oobleck", "dropping"])
    assert all(ours.rate > other.rate for other in others)


def test_a_lost_stage_is_replayed_with_a_log_and_rolled_back_without():
    job = job_of(2, 2, state_bytes=(1e9,) * 2)
    world = world_of(loss(500.0, 0, 2), back(520.0, 0, 2), machines=4, length_s=3000.0)
    paces = Paces(job)
    with_log, without = (
        simulate(world, make_policy("holdfast", paces, {"logs": logs})) for logs in (1.0, 0.0)
    )
    assert with_log.seconds[TimeKind.REDONE] > 0 == with_log.seconds[TimeKind.ROLLED_BACK]
    assert without.seconds[TimeKind.ROLLED_BACK] > 0
    assert with_log.samples > without.samples


def test_notice_saves_the_wait_for_a_silent_worker():
    job = job_of()
    told, silent = (
        simulate(world_of(loss(500.0, 0, notice_s=notice)), make_policy("holdfast", Paces(job)))
        for notice in (60.0, 0.0)
    )
    assert told.seconds[TimeKind.STALLED] < silent.seconds[TimeKind.STALLED]
    assert told.seconds[TimeKind.REDONE] == 0


def test_a_slow_worker_costs_holdfast_less_than_those_who_wait_for_it():
    events = (WorldEvent(100.0, WorldKind.SLOW, (0,), factor=2.0),)
    ours, other = compare_policies(world_of(*events), job_of(), ["holdfast", "recycle"])
    assert ours.goodput > 1.2 * other.goodput


def test_what_does_not_fit_does_not_run():
    job = job_of(state_bytes=(60e9, 60e9), memory_bytes=80e9)
    bamboo, horovod, ours = compare_policies(world_of(), job, ["bamboo", "horovod", "holdfast"])
    assert (bamboo.samples, horovod.samples) == (0, 0)
    assert bamboo.reason
    assert ours.samples > 0


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=lambda policy: policy.name)
def test_a_policy_says_what_it_leaves_out_and_where_its_constants_come_from(policy):
    assert policy.leaves_out
    assert all(row.source for row in listed(policy.constants_type()))


def test_a_constant_can_be_changed():
    job, world = job_of(), world_of(loss(500.0, 0))
    usual, slow = (
        simulate(world, make_policy("oobleck", Paces(job), given))
        for given in ({}, {"regroup_s": 200.0})
    )
    assert slow.seconds[TimeKind.STALLED] == usual.seconds[TimeKind.STALLED] + 175.0


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("comet", {}, "policy comet: expected one of holdfast"),
        ("oobleck", {"x": 1.0}, "constant=oobleck.x: expected one of regroup_s"),
        ("oobleck", {"regroup_s": -1.0}, "expected a number >= 0"),
    ],
)
def test_a_policy_or_constant_that_is_not_there_is_said(name, given, words):
    with pytest.raises(ConfigError, match=words):
        make_policy(name, Paces(job_of()), given)


def test_the_best_layout_is_found_and_comes_first():
    """By brute force: every number of pipelines, every setting."""
    world = generated(Failures(mtbf_s=1800, repair_s=4000), machines=8, length_s=20000, seed=1)
    job = job_of(
        4, 2, each=2, layers=8, state_bytes=(9e9,) * 2, memory_bytes=12e9, link_bytes_s=1e9
    )
    found = optimised(world, job.laid_out, stage_counts(8, 8))
    samples = [round(candidate.outcome.samples) for candidate in found]
    assert samples == sorted(samples, reverse=True)
    assert {candidate.stages for candidate in found} == {2, 4, 8}  # one stage does not fit
    tried = {}
    for stages in (2, 4, 8):
        for pipelines in range(1, 8 // stages + 1):
            laid = job.laid_out(pipelines, stages)
            assert laid.samples_a_step == pytest.approx(job.samples_a_step)
            paces = Paces(laid)
            for logs, overhead in itertools.product((0.0, 1.0), (0.001, 0.005, 0.02)):
                given = {"logs": logs, "save_overhead": overhead}
                outcome = simulate(world, make_policy("holdfast", paces, given))
                tried[pipelines, stages, logs, overhead] = outcome.samples
    assert samples[0] == round(max(tried.values()))
    assert len(set(map(round, tried.values()))) > len(tried) / 2  # it does matter


def test_only_whole_machines_are_laid_out_and_the_constants_are_the_users():
    world = generated(Failures(mtbf_s=1800), machines=3, length_s=9000, seed=1, workers_a_machine=4)
    job = job_of(6, 2, each=2, layers=6)
    found, slow = (
        optimised(world, job.laid_out, [2, 3], constants={"detect_s": detect_s})
        for detect_s in (1.0, 60.0)
    )
    layouts = {(one.pipelines, one.stages, one.spares) for one in found}
    assert layouts == {(6, 2, 0), (4, 2, 4), (4, 3, 0)}
    assert slow[0].outcome.samples < found[0].outcome.samples


@pytest.mark.parametrize("boot_s", [0.0, 5.0])
@pytest.mark.parametrize(
    ("events", "live"),
    [
        ((loss(10.0, 1), back(10.0, 1)), 6),  # gone and back in one moment
        ((loss(5.0, 1), back(10.0, 1), loss(10.0, 1)), 5),  # back and gone again
        ((loss(10.0, 1), back(10.0, 1), loss(50.0, 1)), 5),
    ],
)
def test_who_goes_and_comes_in_one_moment_ends_as_was_told_last(events, live, boot_s):
    assert list(seat_changes(world_of(*events), 6, boot_s))[-1].live == live


@pytest.mark.parametrize(
    ("events", "speeds"),
    [
        ((slow(5.0, 6), loss(10.0, 1)), {1: 0.5}),  # while it waits
        ((loss(1.0, 6), back(2.0, 6), slow(5.0, 6), loss(10.0, 1)), {1: 0.5}),  # while it boots
        ((slow(5.0, 6), loss(6.0, 6), back(8.0, 6), loss(10.0, 1)), {}),  # it came back well
        ((loss(1.0, 1), back(2.0, 1), slow(4.0, 1), loss(6.0, 1), back(8.0, 1), loss(20.0, 0)), {}),
    ],
)
def test_a_slow_machine_that_takes_a_place_is_slow_there(events, speeds):
    found = list(seat_changes(world_of(*events, machines=7), 6, 5.0))
    assert found[-1].change.came
    assert found[-1].change.speeds == speeds
