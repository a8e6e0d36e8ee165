from dataclasses import replace
from itertools import combinations, pairwise
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.planner.logs.boundaries import boundaries_for
from holdfast.planner.logs.groups import best_groups, described, greedy_groups, size_words
from holdfast.planner.logs.replay_time import (
    ReplayCosts,
    global_restart_s,
    swift_replay_s,
    training_step_s,
)

TB = 10**12
PLAIN = ReplayCosts(
    forward_s=(1.0, 1.0, 1.0, 1.0),
    backward_s=(2.0, 2.0, 2.0, 2.0),
    activation_bytes=(10, 10, 10),
    gradient_bytes=(20, 20, 20),
    num_microbatches=8,
    num_helpers=2,
    interval_steps=10,
    lost_steps=5,
    log_bytes_per_s=10.0,
    disk_bytes_per_s=100.0,
    restart_s=1000.0,
)


def machines(step_s, num_microbatches, boundary_bytes, num_helpers, gradient_bytes=None):
    """SWIFT's 16 machines of 8 stages: a machine replays at the pace of its own short pipeline."""
    unit_s = step_s / (num_microbatches + 127) * (num_microbatches + 7) / num_microbatches
    return ReplayCosts(
        forward_s=(unit_s / 3,) * 16,
        backward_s=(2 * unit_s / 3,) * 16,
        activation_bytes=(boundary_bytes,) * 15,
        gradient_bytes=(boundary_bytes if gradient_bytes is None else gradient_bytes,) * 15,
        num_microbatches=num_microbatches,
        num_helpers=num_helpers,
        interval_steps=100,
        lost_steps=50,
        log_bytes_per_s=10e9,
        disk_bytes_per_s=1e9,
        restart_s=60.0,
        step_s=step_s,
    )


VIT = machines(3.28, 256, 839_000_000, num_helpers=15)
BERT = machines(3.28, 128, 268_000_000, num_helpers=15)


# --- how long a recovery takes ---


def by_hand_s(costs, run, stage):
    """The model again, in other words."""
    first, last = run[0], run[-1]
    if len(run) == costs.num_stages:
        return costs.restart_s + costs.lost_steps * training_step_s(costs)
    micro_s = sum(costs.forward_s[s] + costs.backward_s[s] for s in run)
    step_s = ceil(costs.num_microbatches / costs.num_helpers) * micro_s
    if first > 0:
        step_s += costs.activation_bytes[first - 1] / costs.log_bytes_per_s
    if last < costs.num_stages - 1:
        step_s += costs.gradient_bytes[last] / costs.log_bytes_per_s
    others = costs.num_helpers - 1
    summed = 2 * sum(costs.reduced_bytes[s] for s in run) * others / costs.num_helpers
    step_s += summed / costs.network_bytes_per_s
    state_s = (sum(costs.state_bytes[s] for s in run) + 2 * costs.state_bytes[stage]) / (
        costs.disk_bytes_per_s
    )
    return costs.fixed_s + state_s + costs.lost_steps * step_s


def test_a_replay_is_the_work_of_the_busiest_helper_and_the_reading_of_both_boundaries():
    # 4 rounds of 3 s, 10 bytes of activations and 20 of gradients, 5 steps.
    assert PLAIN.times.lost_s(1, 1, 1) == pytest.approx(5 * (4 * 3 + 3))
    assert PLAIN.times.lost_s(0, 0, 0) == pytest.approx(5 * (4 * 3 + 2))
    assert PLAIN.times.lost_s(2, 3, 2) == pytest.approx(5 * (4 * 6 + 1))


def test_micro_batches_that_do_not_divide_leave_one_helper_with_more():
    odd = replace(PLAIN, num_microbatches=9)
    assert odd.times.lost_s(1, 1, 1) == pytest.approx(5 * (5 * 3 + 3))


def test_state_is_loaded_for_the_group_and_handed_over_for_the_lost_stage_only():
    heavy = replace(PLAIN, state_bytes=(100, 200, 300, 400), fixed_s=7.0)
    more_s = heavy.times.lost_s(1, 2, 2) - PLAIN.times.lost_s(1, 2, 2)
    assert more_s == pytest.approx(7 + (200 + 300) / 100 + 2 * 300 / 100)


def test_helpers_sum_their_gradients_over_the_network_and_one_alone_does_not():
    summed = replace(PLAIN, reduced_bytes=(40,) * 4, network_bytes_per_s=10.0)
    assert summed.times.lost_s(1, 1, 1) - PLAIN.times.lost_s(1, 1, 1) == pytest.approx(5 * 4.0)
    alone = replace(summed, num_helpers=1)
    assert alone.times.lost_s(1, 1, 1) == pytest.approx(5 * (8 * 3 + 3))


def test_the_group_of_all_stages_is_a_global_restart():
    assert training_step_s(PLAIN) == pytest.approx(4 * 3 + 7 * 3)
    assert PLAIN.times.lost_s(0, 3, 1) == global_restart_s(PLAIN) == pytest.approx(1000 + 5 * 33)
    assert global_restart_s(replace(PLAIN, step_s=2.0)) == pytest.approx(1010)


@pytest.mark.parametrize(("num_microbatches", "measured_s"), [(256, 112.6), (128, 86.8)])
def test_swifts_own_model_gives_the_figures_it_is_known_for(num_microbatches, measured_s):
    found_s = swift_replay_s(
        lost_steps=50,
        step_s=3.28,
        num_microbatches=num_microbatches,
        num_helpers=1,
        num_replayed=8,
        num_stages=128,
    )
    assert found_s == pytest.approx(measured_s, abs=0.1)
    costs = machines(3.28, num_microbatches, 1, num_helpers=1)
    assert described(costs, range(15), "").expected_s == pytest.approx(found_s)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_s": ()}, "forward_s is empty: expected at least one stage"),
        ({"backward_s": (1.0,)}, "backward_s has 1 entries: expected 4 for 4 stages"),
        ({"gradient_bytes": (1,) * 4}, "gradient_bytes has 4 entries: expected 3 for 4 stages"),
        ({"weights": (1.0,)}, "weights has 1 entries: expected 4"),
        ({"weights": (0.0,) * 4}, "expected one of them above 0"),
        ({"num_helpers": 0}, "num_helpers = 0: expected at least 1"),
        ({"lost_steps": inf}, "lost_steps = inf: expected a finite number >= 0"),
        ({"restart_s": -1.0}, "restart_s = -1.0: expected a finite number >= 0"),
        ({"log_bytes_per_s": 0.0}, "log_bytes_per_s = 0.0: expected a number > 0"),
        ({"activation_bytes": (1 << 60,) * 3}, "all boundaries take more than 1.2e+18 bytes"),
    ],
)
def test_costs_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ConfigError) as caught:
        replace(PLAIN, **change)
    assert words in str(caught.value)


# --- the best groups ---


def brute_force(costs, budget):
    """(expected time, bytes) of every grouping within the budget; the least of them."""
    boundaries = range(costs.num_stages - 1)
    ways = (cuts for n in range(costs.num_stages) for cuts in combinations(boundaries, n))
    found = []
    for cuts in ways:
        edges = [-1, *cuts, costs.num_stages - 1]
        runs = [range(a + 1, b + 1) for a, b in pairwise(edges)]
        time_s = sum(costs.weights[s] * by_hand_s(costs, run, s) for run in runs for s in run)
        num_bytes = costs.interval_steps * sum(
            costs.activation_bytes[b] + costs.gradient_bytes[b] for b in cuts
        )
        if num_bytes <= budget:
            found.append((time_s / sum(costs.weights), num_bytes))
    return found


@st.composite
def random_costs(draw, most_stages=10):
    stages = draw(st.integers(1, most_stages))
    times = st.floats(0.001, 10.0)
    sizes = st.integers(0, 50) | st.integers(10**6, 10**9)

    def row(strategy, number):
        return tuple(draw(st.lists(strategy, min_size=number, max_size=number)))

    return ReplayCosts(
        forward_s=row(times, stages),
        backward_s=row(times, stages),
        activation_bytes=row(sizes, stages - 1),
        gradient_bytes=row(sizes, stages - 1),
        state_bytes=row(sizes, stages),
        reduced_bytes=row(sizes, stages),
        weights=row(st.floats(0.1, 5.0), stages),
        num_microbatches=draw(st.integers(1, 50)),
        num_helpers=draw(st.integers(1, 8)),
        interval_steps=draw(st.integers(1, 20)),
        lost_steps=draw(st.integers(0, 20)),
        log_bytes_per_s=draw(st.sampled_from([1e6, 1e9])),
        disk_bytes_per_s=draw(st.sampled_from([1e6, 1e9])),
        network_bytes_per_s=draw(st.sampled_from([1e7, inf])),
        fixed_s=draw(st.floats(0, 5.0)),
        restart_s=draw(st.sampled_from([0.0, 10.0, 1e5])),
    )


@settings(max_examples=60, deadline=None)
@given(costs=random_costs(), share=st.floats(0, 1.1))
def test_no_grouping_within_the_budget_is_better_than_the_best(costs, share):
    budget = int(share * sum(costs.boundary_bytes))
    ways = brute_force(costs, budget)
    found = best_groups(costs, budget)
    least_s = min(time_s for time_s, _ in ways)
    assert found.proven
    assert found.num_bytes <= budget
    # Exact up to rounding, which is relative to the longest time there is.
    longest_s = max(costs.times.replay_s.max(), costs.times.hand_over_s.max())
    assert found.expected_s == pytest.approx(least_s, rel=1e-12, abs=1e-13 * longest_s)


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(st.integers(1, 3), min_size=2, max_size=9),
    sizes=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    share=st.floats(0, 1.1),
)
def test_of_all_groupings_that_are_as_good_none_has_less_log(work, sizes, share):
    num_boundaries = len(work) - 1
    costs = ReplayCosts(
        forward_s=tuple(map(float, work)),
        backward_s=(0.0,) * len(work),
        activation_bytes=tuple(sizes[:num_boundaries]),
        gradient_bytes=(0,) * num_boundaries,
        num_microbatches=1,
        num_helpers=1,
        interval_steps=1,
        lost_steps=1,
        log_bytes_per_s=1e30,
        disk_bytes_per_s=1.0,
    )
    budget = int(share * sum(costs.boundary_bytes))
    ways = brute_force(costs, budget)
    least_s = min(time_s for time_s, _ in ways)
    as_good = [num_bytes for time_s, num_bytes in ways if time_s < least_s * (1 + 1e-12)]
    assert best_groups(costs, budget).num_bytes == min(as_good)


@settings(max_examples=100, deadline=None)
@given(costs=random_costs(), share=st.floats(0, 1.1))
def test_the_best_is_never_worse_than_swifts_greedy_and_both_keep_to_the_budget(costs, share):
    budget = int(share * sum(costs.boundary_bytes))
    best, greedy = best_groups(costs, budget), greedy_groups(costs, budget)
    assert max(best.num_bytes, greedy.num_bytes) <= budget
    longest_s = max(costs.times.replay_s.max(), costs.times.hand_over_s.max())
    assert best.expected_s <= greedy.expected_s * (1 + 1e-12) + 1e-13 * longest_s


@settings(max_examples=50, deadline=None)
@given(costs=random_costs())
def test_groups_are_all_stages_in_order_and_their_times_are_the_models(costs):
    found = best_groups(costs, sum(costs.boundary_bytes) // 2)
    assert [stage for run in found.groups for stage in run] == list(range(costs.num_stages))
    assert tuple(run[-1] for run in found.groups[:-1]) == found.boundaries
    by_hand = [by_hand_s(costs, run, stage) for run in found.groups for stage in run]
    assert found.stage_s == pytest.approx(by_hand)
    assert found.worst_s == pytest.approx(max(by_hand))


def test_of_two_groupings_as_good_the_one_with_less_log_is_taken():
    # Boundaries 0 and 2 are alike in time; boundary 2 takes less. Only one fits.
    uneven = replace(
        PLAIN, activation_bytes=(10, 90, 10), gradient_bytes=(20, 90, 10), log_bytes_per_s=1e12
    )
    assert best_groups(uneven, 300).boundaries == (2,)
    swapped = replace(uneven, activation_bytes=(10, 90, 10), gradient_bytes=(10, 90, 20))
    assert best_groups(swapped, 300).boundaries == (0,)


def test_without_a_budget_every_boundary_that_saves_time_is_logged():
    assert best_groups(PLAIN, None).boundaries == (0, 1, 2)
    assert greedy_groups(PLAIN, None).boundaries == (0, 1, 2)


def test_a_boundary_whose_reading_takes_longer_than_its_stages_is_left_out():
    # To read boundary 1 takes 100 s a step, to compute a stage 12 s.
    slow = replace(PLAIN, activation_bytes=(10, 1000, 10), gradient_bytes=(20, 1000, 20))
    assert best_groups(slow, None).boundaries == (0, 2)


def test_a_stage_that_fails_more_often_is_kept_apart():
    assert best_groups(replace(PLAIN, weights=(1, 1, 1, 20)), 300).boundaries == (2,)
    assert best_groups(replace(PLAIN, weights=(20, 1, 1, 1)), 300).boundaries == (0,)


def test_a_budget_below_one_boundary_logs_nothing_and_says_so():
    found = best_groups(PLAIN, 299)
    assert found.groups == ((0, 1, 2, 3),)
    assert (found.boundaries, found.num_bytes, found.proven) == ((), 0, True)
    assert found.expected_s == found.worst_s == global_restart_s(PLAIN)
    assert found.reason == (
        "the budget of 299 B is too small for any boundary: the smallest takes 300 B in 10 steps; "
        "nothing is logged, and who loses a stage sends everyone back to the checkpoint"
    )
    assert best_groups(PLAIN, 300).boundaries == (1,)
    assert best_groups(PLAIN, 300).reason == (
        "1 of 3 boundaries logged, with a budget of 300 B; no grouping is better"
    )
    assert greedy_groups(PLAIN, 299).boundaries == ()


def test_nothing_is_logged_when_a_restart_is_faster_than_any_replay():
    found = best_groups(replace(PLAIN, restart_s=0.0, step_s=0.1), None)
    assert found.boundaries == ()
    assert "no grouping within the budget beats a global restart" in found.reason


def test_one_stage_has_nothing_to_log():
    one = replace(
        PLAIN,
        forward_s=(1.0,),
        backward_s=(2.0,),
        activation_bytes=(),
        gradient_bytes=(),
        state_bytes=(),
        reduced_bytes=(),
        weights=(),
    )
    for found in (best_groups(one, None), best_groups(one, 0), greedy_groups(one, 0)):
        assert found.groups == ((0,),)
        assert found.expected_s == global_restart_s(one)


def test_a_search_cut_short_does_not_claim_to_be_the_best_and_gives_a_true_bound():
    uneven = replace(
        VIT,
        activation_bytes=tuple(839_000_000 + 7919 * b * b % 400_000_007 for b in range(15)),
        forward_s=tuple(0.002 + 0.0001 * (s * s % 7) for s in range(16)),
    )
    budget = sum(uneven.boundary_bytes) * 37 // 100
    full, short = best_groups(uneven, budget), best_groups(uneven, budget, most_points=1)
    assert full.proven
    assert full.bound_s == full.expected_s
    assert not short.proven
    assert "a better grouping may exist" in short.reason
    assert short.num_bytes <= budget
    assert 0 < short.bound_s <= full.expected_s * (1 + 1e-9) <= short.expected_s * (1 + 2e-9)


def test_many_stages_with_unlike_boundaries_are_still_proven():
    stages = 128
    costs = ReplayCosts(
        forward_s=tuple(0.01 + (s * 37 % 101) / 1e4 for s in range(stages)),
        backward_s=tuple(0.02 + (s * 53 % 103) / 1e4 for s in range(stages)),
        activation_bytes=tuple(10**8 + b * 7_654_321 % 99_999_989 for b in range(stages - 1)),
        gradient_bytes=tuple(10**8 + b * 1_234_577 % 99_999_971 for b in range(stages - 1)),
        num_microbatches=256,
        num_helpers=127,
        interval_steps=100,
        lost_steps=50,
        log_bytes_per_s=1e10,
        disk_bytes_per_s=1e9,
        restart_s=60.0,
    )
    budget = sum(costs.boundary_bytes) // 3
    best, greedy = best_groups(costs, budget), greedy_groups(costs, budget)
    assert best.proven
    assert best.num_bytes <= budget
    assert best.expected_s < greedy.expected_s


@pytest.mark.parametrize("plan", [best_groups, greedy_groups])
def test_a_budget_below_nothing_is_refused(plan):
    with pytest.raises(ConfigError, match="budget -1 bytes: expected at least 0"):
        plan(PLAIN, -1)


def test_a_boundary_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="expected numbers from 0 to 2"):
        described(PLAIN, [3], "")


# --- against SWIFT ---


@pytest.mark.parametrize("budget", [1.2, 0.9, 0.6, 0.3])
@pytest.mark.parametrize("num_helpers", [1, 15])
@pytest.mark.parametrize("one_direction", [False, True])
def test_for_vit_the_best_is_at_least_as_good_as_the_greedy(budget, num_helpers, one_direction):
    costs = machines(3.28, 256, 839_000_000, num_helpers, 0 if one_direction else None)
    best = best_groups(costs, int(budget * TB))
    assert best.proven
    assert best.expected_s <= greedy_groups(costs, int(budget * TB)).expected_s * (1 + 1e-9)


def test_for_vit_with_nine_tenths_of_a_terabyte_the_greedy_is_worse():
    best, greedy = best_groups(VIT, 9 * TB // 10), greedy_groups(VIT, 9 * TB // 10)
    assert best.num_bytes == greedy.num_bytes
    assert sorted(map(len, best.groups)) == [2, 2, 3, 3, 3, 3]
    assert sorted(map(len, greedy.groups)) == [2, 2, 2, 2, 4, 4]
    assert best.expected_s == pytest.approx(28.59, abs=0.01)
    assert greedy.expected_s == pytest.approx(30.05, abs=0.01)


def test_the_greedy_gives_up_a_small_boundary_that_the_best_keeps():
    # Boundary 0 saves most bytes for its time, but too few: boundary 2 must go as well, or alone.
    costs = replace(
        PLAIN,
        forward_s=(0.5, 0.5, 10.0, 10.0),
        backward_s=(0.0,) * 4,
        activation_bytes=(5, 15, 50),
        gradient_bytes=(5, 15, 50),
        log_bytes_per_s=1e9,
    )
    best, greedy = best_groups(costs, 400), greedy_groups(costs, 400)
    assert (best.boundaries, greedy.boundaries) == ((0, 1), (1,))
    assert best.expected_s == pytest.approx(20 * (0.5 + 0.5 + 20 + 20) / 4)
    assert greedy.expected_s == pytest.approx(20 * (1 + 1 + 20 + 20) / 4)


def test_the_greedy_gives_up_the_boundary_with_the_least_time_a_byte_not_the_least_time():
    costs = replace(
        PLAIN,
        forward_s=(2.0, 2.0, 10.0, 10.0),
        backward_s=(0.0,) * 4,
        activation_bytes=(5, 15, 50),
        gradient_bytes=(5, 15, 50),
        log_bytes_per_s=1e9,
    )
    assert greedy_groups(costs, 400).boundaries == (0, 1)


# --- for a run ---


def asked(budget_bytes, **change):
    usual = {
        "interval_steps": 10,
        "activation_bytes": (1000, 1000, 1000),
        "gradient_bytes": (2000, 2000, 2000),
        "forward_s": (0.1,) * 4,
        "backward_s": (0.2,) * 4,
        "num_microbatches": 8,
        "num_helpers": 3,
    }
    return boundaries_for(budget_bytes=budget_bytes, **(usual | change))


def test_a_run_without_a_budget_logs_every_boundary_without_a_limit():
    assert asked(None).boundaries == [0, 1, 2]
    assert asked(None).limit_bytes == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("budget", "boundaries"),
    [(1_000_000, [0, 1, 2]), (62_000, [1, 2]), (31_000, [1]), (30_000, [])],
)
def test_a_run_logs_as_much_as_its_budget_holds_and_keeps_some_for_headers(budget, boundaries):
    found = asked(budget)
    assert len(found.boundaries) == len(boundaries)
    assert sum(found.limit_bytes) <= budget
    needs = [0] * 4
    for boundary in found.boundaries:
        needs[boundary] += 10 * 1000
        needs[boundary + 1] += 10 * 2000
    assert all(limit > need for limit, need in zip(found.limit_bytes, needs, strict=True))


def test_the_middle_boundary_is_the_one_to_log_if_there_is_room_for_one():
    assert asked(31_000).boundaries == [1]


def test_workers_of_a_stage_share_its_limit():
    one, two = asked(100_000), asked(100_000, holders=(2, 1, 1, 4))
    assert two.boundaries == one.boundaries
    assert two.limit_bytes[0] == one.limit_bytes[0] // 2
    assert two.limit_bytes[3] == one.limit_bytes[3] // 4


def test_a_run_logs_what_fits_however_fast_it_could_go_back():
    quick = asked(31_000, num_helpers=1, num_microbatches=1, log_bytes_per_s=10.0)
    assert len(quick.boundaries) == 1


def test_what_a_stage_logs_besides_comes_first():
    tied = asked(61_500, other_bytes=(2000, 0, 0, 2000))
    assert asked(61_500).boundaries != tied.boundaries == []
    assert tied.limit_bytes[0] > 10 * 2000
    nothing = asked(39_000, other_bytes=(2000, 0, 0, 2000))
    assert nothing.boundaries == []
    assert nothing.reason == "a budget of 39 kB is too small even for tied gradients"
    assert all(limit > 0 for limit in nothing.limit_bytes)


def test_a_stage_is_missing_in_what_is_asked():
    with pytest.raises(ConfigError, match="holders of 3 and other_bytes of 4 stages: expected 4"):
        asked(1000, holders=(1, 1, 1))


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_960, "1 MB"),
        (2_517_000_000_000, "2.517 TB"),
    ],
)
def test_sizes_are_said_in_units_of_ten(num_bytes, words):
    assert size_words(num_bytes) == words
