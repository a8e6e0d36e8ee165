"""What happens during a stop, or while work is done again: little worlds, computed by hand.

Steps of 10 s, 12 samples, six workers, 1,000 s.
"""

import math

import pytest

from holdfast.baselines.policies.catalogue import make_policy
from holdfast.baselines.policies.constants import PolicyConstants
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.policy import (
    Change,
    Policy,
    Reaction,
    Saving,
    StopRule,
    Stretch,
    WorkLost,
)
from holdfast.baselines.policies.their_restarts import TheirRestarts
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.outcome import TimeKind
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind


def job_of(pipelines=3, stages=2, each=4, **more):
    shape = Shape(pipelines, stages, pipelines * each)
    return JobCosts(name="j", shape=shape, costs=Costs.uniform(stages, link_s=0.01), **more)


def world_of(*events, machines=6, length_s=1000.0):
    return World("w", machines, 1, length_s, tuple(range(machines)), tuple(events))


def loss(at_s, *machines, notice_s=0.0):
    return WorldEvent(at_s, WorldKind.LOSS, machines, notice_s)


def back(at_s, *machines):
    return WorldEvent(at_s, WorldKind.RETURN, machines)


class Scripted(Policy):
    name, title, leaves_out = "holdfast", "scripted", ""

    def __init__(self, *answers):
        job = job_of()
        super().__init__(job, Paces(job), PolicyConstants())
        self.told, self._answers = [], answers

    def first(self):
        self._left = list(self._answers)
        return Reaction(period_s=10.0)

    def after(self, change):
        self.told.append(change)
        return self._left.pop(0)

    def saving(self, period_s):
        return Saving(4, 0.0)


def lived(policy, *events):
    found = simulate(world_of(*events), policy, boot_s=0.0)
    assert sum(found.seconds.values()) == pytest.approx(found.length_s)
    return found


def stalled(*answers, events):
    return lived(Scripted(*answers), *events).seconds[TimeKind.STALLED]


def stop(pause_s, **more):
    return Reaction(period_s=10.0, pause_s=pause_s, **more)


# --- a stop ---


@pytest.mark.parametrize(
    ("joins_s", "expected"),
    [
        (10.0, 100.0),  # taken along
        (0.0, 100.0),
        (80.0, 130.0),  # it needs longer than what is left
    ],
)
def test_who_comes_during_a_stop_does_not_end_it(joins_s, expected):
    events = (loss(100.0, 0), back(150.0, 0))
    assert stalled(stop(100.0), stop(joins_s), events=events) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (stop(30.0), 50 + 100),  # anew, with all that the first was for
        (stop(130.0), 50 + 130),
        (stop(30.0, interrupted=StopRule.GOES_ON), 100),
        (stop(80.0, interrupted=StopRule.GOES_ON), 50 + 80),
    ],
)
def test_a_loss_during_a_stop_begins_it_anew_or_lets_it_go_on(second, expected):
    events = (loss(100.0, 0), loss(150.0, 1))
    assert stalled(stop(100.0), second, events=events) == pytest.approx(expected)


def test_what_is_begun_anew_is_the_longest_of_all_that_came_together():
    events = (loss(100.0, 0), back(110.0, 0), loss(150.0, 1))
    found = stalled(stop(20.0), stop(70.0), stop(5.0), events=events)
    assert found == pytest.approx(50 + 70)


def test_a_stop_that_is_over_is_not_begun_anew():
    events = (loss(100.0, 0), loss(250.0, 1))
    assert stalled(stop(100.0), stop(30.0), events=events) == pytest.approx(130)


def test_a_policy_is_told_when_a_change_comes_and_what_is_unfinished():
    policy = Scripted(stop(100.0), Reaction(period_s=math.inf), stop(0.0))
    lived(policy, loss(100.0, 0), loss(150.0, 1), back(600.0, 0))
    told = [(change.at_s, change.unfinished_s, change.stands) for change in policy.told]
    assert told == [(100.0, 0.0, False), (150.0, 50.0, False), (600.0, 0.0, True)]


def test_what_nobody_takes_notice_of_changes_nothing():
    quiet = lived(Scripted(stop(100.0)), loss(100.0, 0))
    noticed = lived(Scripted(stop(100.0), None), loss(100.0, 0), back(150.0, 0))
    assert noticed.samples == pytest.approx(quiet.samples)


# --- work that is owed ---

SHARE = Reaction(period_s=10.0, pause_s=30.0, work_lost=WorkLost.OWN_SHARE)  # 5 s of one of six
REPLAY = Reaction(period_s=10.0, replay_s=2.0)  # three steps since the checkpoint at 110 s


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (stop(0.0), 1.0),
        (Reaction(period_s=10.0, work_lost=WorkLost.STEP), 5.0),  # with its step, done twice
    ],
)
def test_work_of_the_step_stays_owed_unless_the_step_is_lost(second, expected):
    found = lived(Scripted(SHARE, second), loss(105.0, 0), back(120.0, 0))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(expected)


def test_two_losses_in_a_step_owe_both_shares():
    found = lived(Scripted(SHARE, SHARE), loss(105.0, 0), loss(120.0, 1))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(5 / 5 + 5 / 4)
    assert found.seconds[TimeKind.STALLED] == pytest.approx(15 + 30)


@pytest.mark.parametrize(
    ("event", "second", "expected"),
    [
        (back(113.0, 0), stop(0.0), 6.0),  # who comes does not end a replay
        (loss(113.0, 1), stop(0.0), 3.0 + 6.0),  # a loss begins it anew
        (loss(113.0, 1), REPLAY, 3.0 + 12.0),  # and there may be one more
        (loss(113.0, 1), Reaction(period_s=10.0, interrupted=StopRule.GOES_ON), 6.0),
        (loss(117.0, 1), REPLAY, 6.0 + 3.1 * 2),  # the first was over
    ],
)
def test_a_replay_is_ended_or_begun_anew(event, second, expected):
    found = lived(Scripted(REPLAY, second), loss(110.0, 0), event)
    assert found.seconds[TimeKind.REDONE] == pytest.approx(expected)


def test_a_stop_is_begun_anew_with_its_replay():
    both = Reaction(period_s=10.0, pause_s=20.0, replay_s=2.0)
    found = lived(Scripted(both, stop(5.0)), loss(110.0, 0), loss(133.0, 1))
    assert found.seconds[TimeKind.STALLED] == pytest.approx(20 + 20)
    assert found.seconds[TimeKind.REDONE] == pytest.approx(3 + 6)


def test_who_goes_back_to_the_checkpoint_owes_nothing():
    rolled = Reaction(period_s=10.0, work_lost=WorkLost.SINCE_CHECKPOINT)
    found = lived(Scripted(REPLAY, rolled), loss(110.0, 0), loss(113.0, 1))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(3)
    assert found.seconds[TimeKind.ROLLED_BACK] == pytest.approx(30)


def test_what_is_owed_is_owed_after_the_wait_for_workers():
    wait = Reaction(period_s=math.inf)
    found = lived(Scripted(SHARE, wait, stop(0.0)), loss(105.0, 0), loss(120.0, 1), back(300.0, 0))
    assert found.seconds[TimeKind.REDONE] == pytest.approx(1)
    assert found.seconds[TimeKind.IDLE] == pytest.approx(300 - 150)  # the stop began anew


@pytest.mark.parametrize(
    ("goes_on", "second", "slow_s"),
    [
        (True, stop(0.0), 100),
        (False, stop(0.0), 50),
        (True, Reaction(period_s=10.0, meanwhile=(Stretch(80.0, 20.0),)), 130),
    ],
)
def test_copies_go_on_beside_what_comes(goes_on, second, slow_s):
    copying = Reaction(period_s=10.0, meanwhile=(Stretch(100.0, 20.0, goes_on),))
    found = lived(Scripted(copying, second), loss(100.0, 0), back(150.0, 0))
    assert found.samples / 12 == pytest.approx((1000 - slow_s) / 10 + slow_s / 20)


# --- policies ---


def holdfast(*events, **given):
    job = job_of(3, 2, state_bytes=(1e9,) * 2)
    policy = make_policy("holdfast", Paces(job), {"save_overhead": 1e-5, **given})
    return simulate(world_of(*events, length_s=3000.0), policy, boot_s=0.0)


def test_a_second_failure_during_a_rebuild_costs_what_it_costs():
    whole_stage = loss(1000.0, 0, 2, 4)
    once = holdfast(whole_stage).seconds
    again = holdfast(whole_stage, loss(1001.0, 1, notice_s=9.0)).seconds
    stop_s, replay_s = once[TimeKind.STALLED], once[TimeKind.REDONE]
    assert again[TimeKind.STALLED] == pytest.approx(1 + stop_s)
    assert again[TimeKind.REDONE] == pytest.approx(replay_s)  # it had not begun
    late_s = 1000 + stop_s + replay_s / 2
    late = holdfast(whole_stage, loss(late_s, 1, notice_s=9.0)).seconds
    assert late[TimeKind.STALLED] == pytest.approx(2 * stop_s)
    assert late[TimeKind.REDONE] == pytest.approx(1.5 * replay_s)


def test_two_lost_stages_are_replayed_one_after_the_other():
    job = job_of(2, 4, state_bytes=(1e9,) * 4)

    def redone_s(*machines):
        policy = make_policy("holdfast", Paces(job), {"save_overhead": 1e-5})
        world = world_of(loss(500.0, *machines), machines=8, length_s=2000.0)
        found = simulate(world, policy, boot_s=0.0).seconds
        assert found[TimeKind.IDLE] == 0
        return found[TimeKind.REDONE] * (8 - len(machines))  # the crew shares it

    assert redone_s(0, 4, 2, 6) == pytest.approx(2 * redone_s(0, 4))


def test_bamboo_loses_all_when_the_stand_in_goes_before_it_is_relieved():
    job = job_of(3, 4)
    at_once, soon, joined, later = (
        simulate(
            world_of(*events, machines=12), make_policy("bamboo", Paces(job)), boot_s=0.0
        ).seconds[TimeKind.ROLLED_BACK]
        for events in (
            (loss(500.0, 0, 1),),
            (loss(500.0, 0), loss(510.0, 1)),
            (loss(500.0, 0, 6), back(505.0, 6), loss(510.0, 1)),
            (loss(500.0, 0), loss(550.0, 1)),
        )
    )
    assert at_once > 0
    assert soon > 0
    assert joined > 0
    assert later == 0


# --- as Oobleck's simulator has it ---


def begun(restarts, at_s, number=1, *, stands=False):
    change = Change(lost=tuple(range(number)), at_s=at_s, stands=stands)
    found = restarts.begin(number, change, stop(70.0), pace_s=8.0)
    return found.pause_s, [one[:2] for one in found.meanwhile], found.period_s


def test_steps_go_on_until_a_restart_ends():
    assert begun(TheirRestarts(), 100.0) == (0.0, [(70.0, 8.0)], 10.0)


def test_with_two_restarts_at_once_all_stand_in_the_end():
    restarts = TheirRestarts()
    assert begun(restarts, 100.0, 2)[2] == math.inf
    assert begun(restarts, 400.0, stands=True) == (70.0, [], 10.0)


def test_between_the_ends_of_two_restarts_there_are_steps():
    restarts = TheirRestarts()
    begun(restarts, 100.0)
    assert begun(restarts, 160.0) == (0.0, [(10.0, 8.0), (60.0, 10.0)], math.inf)


def test_who_stands_goes_on_standing_until_the_first_restart_ends():
    restarts = TheirRestarts()
    begun(restarts, 100.0, stands=True)
    assert begun(restarts, 160.0) == (10.0, [(60.0, 10.0)], math.inf)
