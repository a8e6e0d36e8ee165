from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.mitigation.options import Action, Choice, Option, SlowSituation
from holdfast.mitigation.patience import FIRST_WAIT_STEPS, LEAST_QUIET_STEPS
from holdfast.mitigation.policy import MitigationPolicy


def replan(period_s=0.412, cost_s=0.09, subjects=("1.0",)):
    return Option(Action.REPLAN, period_s, cost_s, subjects, "fewer micro-batches for 1.0")


def places(period_s=0.38, cost_s=2.0, subjects=("1.0",)):
    return Option(Action.PLACES, period_s, cost_s, subjects, "1.0 and 0.1 change places")


def drop(period_s=0.36, cost_s=3.0):
    return Option(Action.DROP, period_s, cost_s, ("1.0",), "1.0 is left out")


def now(step=10, steps_left=1000, period_s=0.54, healthy_s=0.36, factor=1.5):
    return SlowSituation(step, steps_left, period_s, healthy_s, {"1.0": factor})


def lose(policy, seconds):
    policy.note_step(0.36 + seconds, 0.36)


def test_a_cheap_option_is_taken_at_once_and_the_reason_has_the_numbers():
    choice = MitigationPolicy().choose(now(), [replan()])
    assert choice.option == replan()
    assert choice.reason == (
        "re-plan: 0.412 s instead of 0.54 s a step; costs 0.09 s, repaid in 1 step"
    )


def test_the_steps_until_a_cost_is_repaid_are_rounded_up():
    choice = MitigationPolicy().choose(now(period_s=1.0), [replan(period_s=0.5, cost_s=1.1)])
    assert "repaid in 3 steps" in choice.reason


@pytest.mark.parametrize(("period_s", "action"), [(0.985, Action.WAIT), (0.975, Action.REPLAN)])
def test_a_gain_below_two_percent_is_no_reason_for_a_change(period_s, action):
    choice = MitigationPolicy().choose(now(period_s=1.0), [replan(period_s, cost_s=0.001)])
    assert choice.option.action is action


def test_nothing_to_choose_from_is_a_reason_to_wait():
    choice = MitigationPolicy().choose(now(), [])
    assert choice.option == Option(Action.WAIT, 0.54, 0.0, ("1.0",), "as it is")
    assert choice.reason == "wait: there is no other option"


def test_waiting_as_an_option_is_never_a_change():
    waiting = Option(Action.WAIT, 0.1, 0.0, ("1.0",), "as it is")
    assert MitigationPolicy().choose(now(), [waiting]).option.period_s == 0.54


def test_a_dear_option_is_taken_when_as_much_has_been_lost_as_it_costs():
    policy, dear = MitigationPolicy(), places(cost_s=10.0)
    choice = policy.choose(now(), [dear])
    assert choice.option.action is Action.WAIT
    assert choice.reason == (
        "wait: change places costs 10 s, not repaid within 20 steps "
        "(0.38 s instead of 0.54 s a step), and only 0 s lost so far"
    )
    lose(policy, 9.9)
    assert policy.choose(now(), [dear]).option.action is Action.WAIT
    lose(policy, 0.2)
    choice = policy.choose(now(), [dear])
    assert choice.option == dear
    assert choice.reason.endswith("repaid in 63 steps; 10.1 s lost so far is as much")


def test_steps_that_are_shorter_than_predicted_make_up_for_longer_ones():
    policy = MitigationPolicy()
    for took_s in (0.46, 0.26, 0.46, 0.26, 0.0, 0.37):
        policy.note_step(took_s, 0.36)
    assert policy.lost_s == pytest.approx(0.01)


def test_what_was_lost_is_forgotten_with_a_change_and_when_all_is_well():
    for end in (lambda p: p.changed(Choice(replan(), ""), 10), lambda p: p.over()):
        policy = MitigationPolicy()
        lose(policy, 5.0)
        end(policy)
        assert policy.lost_s == 0


def test_nothing_is_done_that_the_steps_left_do_not_repay():
    policy = MitigationPolicy()
    lose(policy, 100.0)
    choice = policy.choose(now(steps_left=18), [places()])
    assert choice.option.action is Action.WAIT
    assert "costs 2 s, too much for 18 steps left" in choice.reason
    assert policy.choose(now(steps_left=19), [places()]).option == places()


def test_the_cheaper_option_comes_first_unless_the_dearer_is_much_better():
    near, far = places(period_s=0.405, cost_s=0.1), places(period_s=0.40, cost_s=0.1)
    assert MitigationPolicy().choose(now(), [near, replan()]).option == replan()
    assert MitigationPolicy().choose(now(), [far, replan()]).option == far


def test_a_dearer_option_must_repay_what_it_costs_more():
    policy, dear = MitigationPolicy(), places(cost_s=2.0)  # 0.032 s a step better than to re-plan
    assert policy.choose(now(), [replan(), dear]).option == replan()
    lose(policy, 2.1)
    assert policy.choose(now(), [replan(), dear]).option == dear
    assert policy.choose(now(steps_left=80), [replan(), dear]).option == replan()


def test_of_equal_costs_the_one_that_interferes_less_comes_first():
    both = [drop(period_s=0.41, cost_s=0.09), replan()]
    assert MitigationPolicy().choose(now(), both).option == replan()


def test_a_worker_is_dropped_only_if_that_is_allowed():
    assert MitigationPolicy().choose(now(), [drop()]).option == drop()
    choice = MitigationPolicy(may_drop=False).choose(now(), [drop()])
    assert choice.reason == "wait: drop is not allowed (mitigation.drop)"


def test_how_soon_a_cost_must_be_repaid_can_be_set():
    assert (
        MitigationPolicy(pays_within_steps=12).choose(now(), [places()]).option.action
        is Action.WAIT
    )
    assert MitigationPolicy(pays_within_steps=13).choose(now(), [places()]).option == places()


def test_after_a_change_the_same_subject_must_wait_twice_as_long_each_time():
    policy, step = MitigationPolicy(), 100
    for wait in (5, 10, 20, 40):
        choice = policy.choose(now(step=step), [replan()])
        assert choice.option == replan()
        policy.changed(choice, step)
        assert f"not before step {step + wait}: 1.0" in (
            policy.choose(now(step=step + wait - 1), [replan()]).reason
        )
        step += wait


def test_another_subject_need_not_wait():
    policy = MitigationPolicy()
    policy.changed(policy.choose(now(), [replan()]), 10)
    both = replan(subjects=("1.0", "2.1"))
    assert policy.choose(now(step=11), [both]).option == both


@pytest.mark.parametrize(("factor", "action"), [(2.2, Action.WAIT), (2.3, Action.REPLAN)])
def test_a_factor_that_grew_much_is_a_new_problem(factor, action):
    policy = MitigationPolicy()
    policy.changed(policy.choose(now(factor=1.5), [replan()]), 10)
    assert policy.choose(now(step=11, factor=factor), [replan()]).option.action is action


def test_the_largest_factor_that_was_answered_counts():
    policy = MitigationPolicy()
    for step, factor in ((10, 3.0), (20, 1.5)):
        policy.changed(policy.choose(now(step=step, factor=factor), [replan()]), step)
    assert policy.choose(now(step=21, factor=4.0), [replan()]).option.action is Action.WAIT


def test_a_subject_that_was_quiet_for_long_is_new_again():
    policy = MitigationPolicy()
    for step in (0, 5, 15):
        policy.changed(policy.choose(now(step=step), [replan()]), step)
    step = 15 + LEAST_QUIET_STEPS
    policy.changed(policy.choose(now(step=step), [replan()]), step)
    assert policy.choose(now(step=step + 5), [replan()]).option == replan()


def run(slow_at, num_steps, detected_after=1):
    """Steps at which something was changed; slow if ``slow_at(step)``, by a factor of 2."""
    policy, mitigated, changes = MitigationPolicy(), False, []
    for step in range(num_steps):
        slow = slow_at(max(0, step - detected_after))
        period_s = (0.41 if mitigated else 0.72) if slow else (0.40 if mitigated else 0.36)
        policy.note_step(period_s, 0.36)
        situation = SlowSituation(step, 10**9, period_s, 0.36, {"1.0": 2.0} if slow else {})
        back = Option(Action.BACK, 0.36, 0.001, ("1.0",), "as before")
        options = [back] if mitigated and not slow else [replan(0.41, 0.001)] * (not mitigated)
        choice = policy.choose(situation, options)
        if choice.option.action is not Action.WAIT:
            mitigated = choice.option.action is Action.REPLAN
            policy.changed(choice, step)
            changes.append(step)
        if not slow and not mitigated:
            policy.over()
    return changes


@pytest.mark.parametrize("on_off", [1, 3, 7, 20, 64])
@pytest.mark.parametrize("num_steps", [100, 1000, 10_000])
def test_on_and_off_slowness_leads_to_no_more_changes_than_the_logarithm_of_the_steps(
    on_off, num_steps
):
    changes = run(lambda step: step // on_off % 2 == 0, num_steps)
    assert 1 <= len(changes) <= 2 + log2(num_steps / FIRST_WAIT_STEPS)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_no_slowness_however_timed_leads_to_many_changes(lengths):
    slow = [at % 2 == 0 for at, length in enumerate(lengths) for _ in range(length)]
    changes = run(slow.__getitem__, len(slow))
    bouts = 1 + max(0.0, log2(len(slow) / LEAST_QUIET_STEPS))
    assert len(changes) <= bouts * (2 + max(0.0, log2(len(slow) / FIRST_WAIT_STEPS)))


def test_an_adversary_that_is_quiet_just_long_enough_gains_little():
    """Slow again as soon as the wait is forgotten: such bouts are ever further apart."""
    step, starts = 0, []
    while step < 20_000:
        starts.append(step)
        step += max(LEAST_QUIET_STEPS, step) + 20
    slow = {start + i for start in starts for i in range(10)}
    changes = run(slow.__contains__, 20_000)
    assert len(starts) < len(changes) <= 2 * len(starts)
    assert len(starts) <= 2 + log2(20_000 / LEAST_QUIET_STEPS)


def test_slowness_that_comes_and_goes_slowly_is_forgotten_ever_less_often():
    num_steps = 30_000
    changes = run(lambda step: step // 150 % 2 == 0, num_steps)
    bouts = 1 + log2(num_steps / LEAST_QUIET_STEPS)
    assert len(changes) <= bouts * log2(num_steps / FIRST_WAIT_STEPS)


def test_going_back_needs_a_gain_too():
    back = Option(Action.BACK, 0.36, 0.05, ("1.0",), "as before")
    assert MitigationPolicy().choose(now(period_s=0.366), [back]).option.action is Action.WAIT
    assert MitigationPolicy().choose(now(period_s=0.37), [back]).option == back
