"""Iterations are found in the order of calls alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.watch.iteration import find_period
from holdfast.watch.records import Call, Record
from holdfast.watch.stream import Stream

STEP = 99


def test_the_smallest_period_wins():
    assert find_period([1, 2] * 6, ()).length == 2


def test_one_call_again_and_again_is_a_period_of_one():
    assert find_period([7] * 3, ()) == (1, 0)


def test_two_repetitions_are_not_enough():
    assert find_period([1, 2, 3] * 2, ()) is None
    assert find_period([1, 2, 3] * 3, ()) == (3, 0)


def test_what_is_done_once_at_the_start_does_no_harm():
    assert find_period([8, 9, 8, 8, *[1, 2, 3] * 4], ()) == (3, 4)


def test_calls_without_a_pattern_have_no_period():
    assert find_period([1, 2, 1, 1, 2, 2, 1, 2, 1, 3, 1, 2], ()) is None


def test_a_loop_inside_of_the_iteration_is_not_the_iteration():
    layers = [1] * 50
    assert find_period([*layers, 2, STEP] * 3, {STEP}) == (52, 0)
    assert find_period([*[*layers, 2, STEP] * 3, *layers[:9]], {STEP}) == (52, 0)


def test_a_loop_that_never_reaches_a_mark_is_no_iteration():
    assert find_period([STEP, *[1] * 50], {STEP}) is None


def test_right_after_an_interruption_nothing_is_certain():
    usual = [1, 2] * 100
    assert find_period([*usual, 9, 1, 2, 1, 2], ()) is None
    assert find_period([*usual, 9, 1, 2, 1, 2, 1, 2], ()).length == 2


def test_a_tail_that_fits_by_chance_is_not_enough():
    """Three repetitions at the end, but most of the recent calls do not agree."""
    assert find_period([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 5, 5, 5], ()) is None


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.lists(st.integers(0, 4), max_size=10),
    st.integers(8, 12),
)
def test_a_repeated_pattern_is_found_whatever_comes_before_it(pattern, before, repeats):
    period = find_period([*before, *[*pattern, STEP] * repeats], {STEP})
    # the pattern itself, or a shorter one that it is made of
    assert period is not None
    assert (len(pattern) + 1) % period.length == 0


# --- with times ---


def records(names, step_s=0.01, call_s=0.004):
    """Each call takes ``call_s``, the time before it ``step_s``."""
    now_ns = 10**9
    for name in names:
        enter_ns = now_ns + int(step_s * 1e9)
        now_ns = enter_ns + int(call_s * 1e9)
        size = 0 if name == "step" else 4
        yield Record(Call(name, "", size), enter_ns, now_ns)


def told(names):
    stream = Stream()
    return [iteration for record in records(names) for iteration in stream.add(record)]


def test_iterations_have_their_time_and_the_time_outside_of_calls():
    iterations = told(["broadcast", *["all_reduce", "step"] * 5])
    assert [iteration.number for iteration in iterations] == [1, 2, 3, 4, 5]
    for iteration in iterations:
        assert iteration.took_s == pytest.approx(0.028)
        assert iteration.busy_s == pytest.approx(0.020)
        assert [call.op for call in iteration.calls] == ["all_reduce", "step"]


def test_an_iteration_ends_with_the_step_of_the_optimizer():
    iterations = told(["barrier", *["gradients", "step", "all_reduce"] * 6])
    assert {iteration.calls[-1].op for iteration in iterations} == {"step"}


def test_a_validation_in_between_costs_one_iteration_and_no_count():
    before = ["all_reduce", "step"] * 6
    numbers = [i.number for i in told([*before, "gather", "gather", *before])]
    assert numbers == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_steps_with_other_calls_still_count():
    odd = ["all_reduce", "gather", "step"]
    usual = ["all_reduce", "step"] * 6
    assert [i.number for i in told([*usual, *odd, *odd, *usual])][5:7] == [9, 10]


def test_another_phase_has_its_own_period():
    first, second = ["all_reduce", "step"] * 8, ["all_gather", "reduce_scatter", "step"] * 8
    shapes = {tuple(call.op for call in i.calls) for i in told([*first, *second])}
    assert ("all_gather", "reduce_scatter", "step") in shapes


def test_sizes_that_change_all_the_time_do_not_hide_the_period():
    stream, iterations = Stream(), []
    for index, record in enumerate(records(["all_to_all", "step"] * 60)):
        ragged = record._replace(call=record.call._replace(size=index * index % 8191))
        iterations += stream.add(ragged)
    assert iterations[-1].number == 60
    assert {len(iteration.calls) for iteration in iterations} == {2}


def test_a_long_validation_is_not_taken_for_iterations():
    usual = ["all_reduce", "step"] * 8
    iterations = told([*usual, *["gather"] * 50, *usual])
    assert {iteration.calls[0].op for iteration in iterations} == {"all_reduce"}
    assert iterations[-1].number == 16


def test_calls_that_never_repeat_are_not_kept_for_ever():
    stream, dice = Stream(), random.Random(0)
    for record in records(["gather"] * 20_000):
        stream.add(record._replace(call=Call(f"gather{dice.randrange(50)}", "", 4)))
    assert stream.num_calls == 20_000
    assert stream.pattern == ()
    assert stream.num_unplaced <= 12_000


# --- equal calls before the first step: they have a period, but not the iteration's ---

_MICROBATCH = [
    *["all_gather_single"] * 6,
    *["reduce_scatter_single", "all_gather_single"] * 2,
    *["reduce_scatter_single"] * 2,
]
_BOTH_WAYS = ["batch_isend_irecv", "wait", "wait"]
RECORDED = {  # one iteration of the first rank, as the hooks have told it
    "fully_shard": [*_MICROBATCH * 3, "step"],
    "Schedule1F1B": [*["isend", "wait"] * 2, *_BOTH_WAYS * 6, *["irecv", "wait"] * 2, "step"],
    "all_reduce by hand": [*["all_reduce"] * 12, "step"],
}


@pytest.mark.parametrize("kind", RECORDED)
def test_equal_calls_before_the_first_step_are_not_the_iteration(kind):
    calls = RECORDED[kind]
    stream = Stream()
    iterations = [i for record in records(calls * 8) for i in stream.add(record)]
    first = iterations[-1].counted_anew
    assert first == 1, "no wrong period was found: this test proves nothing"
    right = [iteration for iteration in iterations if iteration.counted_anew]
    assert [iteration.number for iteration in right] == list(range(right[0].number, 9))
    assert right[0].number <= 4
    for iteration in right:
        assert [call.op for call in iteration.calls] == calls
        assert iteration.took_s == pytest.approx(0.014 * len(calls))


def test_a_job_without_an_optimizer_has_iterations_all_the_same():
    iterations = told(["all_reduce", "barrier"] * 8)
    assert {iteration.counted_anew for iteration in iterations} == {0}
    assert iterations[-1].number == 8
