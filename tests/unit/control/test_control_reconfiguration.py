"""The phases of a reconfiguration, of a run and of its end: what may follow what."""

from itertools import product

import pytest

from holdfast.cluster import WorkerId
from holdfast.control.decide.reconfiguration import (
    ChangeRequest,
    Reconfiguration,
    ReconfigurationPhase,
)
from holdfast.control.state.ending import Ending
from holdfast.control.state.lifecycle import Lifecycle, RunPhase
from holdfast.control.state.transition import IllegalTransition

P, R = ReconfigurationPhase, RunPhase
STANDING = (P.HALTING, P.REBUILDING, P.STRANDED)
LEGAL = {
    *product((P.HALTING, P.STRANDED), (*STANDING, P.ROLLING_BACK, P.RESUMING)),
    *product((P.REBUILDING,), (*STANDING, P.ROLLING_BACK)),
    (P.ROLLING_BACK, P.RESUMING),
    (P.RESUMING, P.HALTING),
    (P.RESUMING, P.COMPLETE),
}
ONE, OTHER = WorkerId(0, 0), WorkerId(1, 0)


def change(phase=P.HALTING):
    return Reconfiguration(1.0, 1.0, phase=phase)


@pytest.mark.parametrize(("before", "after"), list(product(P, P)))
def test_only_what_is_in_the_table_may_follow(before, after) -> None:
    one = change(before)
    if (before, after) in LEGAL:
        one.enter(after)
        assert one.phase is after
        return
    with pytest.raises(IllegalTransition, match=f"from {before.name} to {after.name}"):
        one.enter(after)
    assert one.phase is before


def test_from_every_phase_but_the_last_it_can_come_to_an_end() -> None:
    reached = {P.COMPLETE}
    while new := {before for before, after in LEGAL if after in reached} - reached:
        reached |= new
    assert reached == set(P)


def test_a_halt_forgets_what_was_told_and_keeps_what_it_is_for() -> None:
    one = change()
    one.lose(ONE, 0, 0.5)
    one.note_busy(OTHER, 2.0)
    one.halt(3.0)
    assert (one.halted_s, one.busy_s, one.inventories) == (3.0, {}, {})
    assert (one.causes, one.dead, one.num_lost, one.fault_s) == (["death"], [(ONE, 0)], 1, 0.5)


def test_a_plan_ends_what_it_was_for_and_adds_up_what_is_redone() -> None:
    one = change()
    one.request(ChangeRequest("join", entering=(OTHER,)))
    one.lose(ONE, 0, 0.5)
    one.resume(4, redone=3, operations=7, at_s=2.0)
    assert one.is_resuming
    assert not one.entering
    assert not one.dead
    one.halt(3.0)
    one.resume(4, redone=2, operations=6, at_s=4.0)
    assert (one.redone, one.operations, one.workers) == (5, 6, [OTHER, ONE])


def test_work_that_was_noted_first_counts() -> None:
    one = change()
    one.note_lost_work(ONE, [])
    one.note_lost_work(ONE, ["of the one who came under its name"])
    assert one.lost_work == {ONE: []}


def test_it_is_complete_when_the_last_has_resumed() -> None:
    one = change(P.RESUMING)
    one.note_resumed(ONE, 2.0)
    one.note_resumed(OTHER, 3.0)
    one.note_resumed(OTHER, 9.0)  # the first word counts
    assert one.complete() == 3.0
    with pytest.raises(IllegalTransition, match="from COMPLETE to HALTING"):
        one.halt(4.0)


# --- the run, and its end ---


def test_a_run_that_is_over_stays_so() -> None:
    life = Lifecycle()
    for phase in (R.MEASURING, R.BUILDING, R.TRAINING, R.RETURNING, R.TRAINING, R.FINISHED):
        life.enter(phase)
    assert life.over
    with pytest.raises(IllegalTransition, match="the run cannot go from FINISHED to FAILED"):
        life.enter(R.FAILED)


def test_a_run_does_not_train_before_stages_are_built() -> None:
    with pytest.raises(IllegalTransition, match="from STARTING to TRAINING"):
        Lifecycle().enter(R.TRAINING)


def test_an_end_is_decided_only_if_it_was_asked_for() -> None:
    ending = Ending(20)
    ending.decide(7)
    assert (ending.end_step, ending.is_early) == (20, False)
    ending.ask("interrupted", 1.0)
    ending.ask("something else", 2.0)
    assert (ending.reason, ending.early_since_s, ending.is_undecided) == ("interrupted", 1.0, True)
    ending.decide(7)
    assert (ending.end_step, ending.is_early, ending.is_undecided) == (7, True, False)


def test_a_step_that_cannot_be_run_opens_the_question_again() -> None:
    ending = Ending(20)
    ending.ask("interrupted", 1.0)
    ending.decide(7)
    ending.ask_with(5, "no data", "traceback", 2.0)
    assert (ending.end_step, ending.is_undecided, ending.details) == (5, True, "traceback")
    assert ending.reason == "interrupted"
