"""What a worker remembers of its running steps, for how long, and how many bytes that takes."""

import pytest
import torch
from torch import Tensor

from holdfast.planner.remainder.facts import MicrobatchProgress
from holdfast.runtime.step.ledger import Ledger
from holdfast.schedule.operation import Fact, Op, What, parse_op


def ran(ledger: Ledger, *texts: str) -> None:
    for text in texts:
        ledger.ran(parse_op(text))


def tensor(value: float, numel: int = 4) -> tuple[Tensor, ...]:
    return (torch.full((numel,), value),)


def op(text: str) -> Op:
    return parse_op(text)


def begun(step: int, attempt: int = 0) -> Ledger:
    ledger = Ledger()
    ledger.begin(step, attempt)
    return ledger


def test_a_new_ledger_is_in_no_step_at_all():
    ledger = Ledger()
    assert not ledger.has_begun(0, 0)
    assert (ledger.progress, ledger.kept, ledger.peak_bytes, ledger.done_of(0)) == ({}, {}, 0, 0)


def test_a_micro_batch_is_as_far_as_its_last_operation():
    ledger = begun(3)
    ran(ledger, "1F0", "1F1", "1F2", "1F3", "1B1", "1BW2", "1B3", "1W3")
    assert ledger.progress == {
        0: MicrobatchProgress.FORWARDED,
        1: MicrobatchProgress.GRADED,
        2: MicrobatchProgress.SUMMED,
        3: MicrobatchProgress.SUMMED,
    }


def test_operations_are_counted_for_the_running_step_and_the_one_before():
    ledger = begun(3)
    ran(ledger, "1F0", "1BW0", "1F1")
    assert (ledger.num_done, ledger.done_of(3), ledger.done_of(2)) == (3, 3, 0)
    ledger.begin(4, 0)
    ran(ledger, "1F0")
    assert (ledger.num_done, ledger.done_of(4), ledger.done_of(3), ledger.done_of(2)) == (
        1,
        1,
        3,
        0,
    )
    ledger.begin(4, 1)
    assert (ledger.done_of(4), ledger.done_of(3)) == (0, 3)


def test_the_attempt_of_the_step_before_is_remembered_too():
    ledger = begun(3, 1)
    ledger.begin(4, 0)
    assert (ledger.attempt_of(4), ledger.attempt_of(3)) == (0, 1)
    ledger.begin(4, 1)
    ledger.begin(5, 0)
    assert (ledger.attempt_of(5), ledger.attempt_of(4)) == (0, 1)


def test_a_reduction_is_an_operation_but_of_no_micro_batch():
    ledger = begun(0)
    ran(ledger, "1F0", "1BW0", "1R")
    assert (ledger.num_done, set(ledger.progress)) == (3, {0})


def test_only_the_same_step_and_attempt_have_begun():
    ledger = begun(3, 1)
    assert [ledger.has_begun(*one) for one in [(3, 1), (3, 0), (2, 1), (4, 1)]] == [
        True, False, False, False,
    ]  # fmt: skip


def test_what_was_sent_is_found_by_the_fact_it_is():
    ledger = begun(2)
    sent, gradient = tensor(1.0), tensor(2.0)
    ledger.keep(2, op("1F5"), sent)
    ledger.keep(2, op("1B5"), gradient)
    assert ledger.find(2, Fact(What.ACTIVATION, 1, 5))[0] is sent[0]
    assert ledger.find(2, Fact(What.GRADIENT, 1, 5))[0] is gradient[0]
    ledger.keep(2, op("1BW4"), gradient)
    assert set(ledger.kept[2].gradients) == {4, 5}
    with pytest.raises(KeyError):
        ledger.find(1, Fact(What.ACTIVATION, 1, 5))


def test_an_abandoned_attempt_leaves_nothing_and_other_steps_keep_theirs():
    ledger = begun(2)
    ledger.keep(1, op("1F0"), tensor(1.0))
    ledger.keep(2, op("1F0"), tensor(2.0))
    ran(ledger, "1F0")
    ledger.begin(2, 1)
    assert (set(ledger.kept), ledger.progress, ledger.num_done) == ({1}, {}, 0)


def test_kept_tensors_stay_until_they_are_released():
    ledger = begun(0)
    for step in range(4):
        ledger.begin(step, 0)
        ledger.keep(step, op("0F1"), tensor(step))
    ledger.release_before(2)
    assert list(ledger.kept) == [2, 3]
    ledger.release_before(2)
    assert list(ledger.kept) == [2, 3]


def test_the_peak_counts_what_was_held_at_once():
    ledger = begun(0)
    ledger.keep(0, op("0F0"), tensor(1.0, 4))  # 16 bytes
    ledger.keep(0, op("0F1"), tensor(1.0, 4))
    assert ledger.peak_bytes == 32
    ledger.release_before(1)
    ledger.keep(1, op("0F0"), (*tensor(1.0, 2), *tensor(1.0, 1)))
    assert ledger.peak_bytes == 32
    ledger.keep(1, op("0F1"), tensor(1.0, 6))
    assert ledger.peak_bytes == 36


def test_what_is_kept_again_takes_the_place_of_the_first_copy():
    ledger = begun(0)
    ledger.keep(0, op("0F0"), tensor(1.0, 4))
    ledger.keep(0, op("0F0"), tensor(1.0, 4))
    assert ledger.peak_bytes == 16
    ledger.release_before(1)
    ledger.keep(1, op("0F0"), tensor(1.0, 4))
    assert ledger.peak_bytes == 16
