"""The life of a worker, as a table: what may follow what, and what an error tells."""

import pytest

from holdfast.cluster import WorkerId
from holdfast.control.state.workers import membership as m
from holdfast.control.state.workers.membership import (
    Command,
    InvalidTransition,
    Membership,
    WorkerPhase,
)

ME, OTHER = WorkerId(0, 0), WorkerId(1, 0)
NOTICES = [
    m.ProcessExited,
    m.ConnectionClosed,
    m.PeerComplained,
    m.SilentTooLong,
    m.GaveUp,
]
START = [m.SaidHello, m.IsReady, m.Entered]


def after(*stimuli: type[m.Stimulus]) -> Membership:
    crew = Membership([ME, OTHER], [ME])
    for number, kind in enumerate(stimuli):
        crew.handle(kind(ME, float(number)))
    return crew


def test_a_worker_that_is_started_becomes_a_member() -> None:
    assert after().phase(ME) is WorkerPhase.STARTING
    assert after(*START[:1]).phase(ME) is WorkerPhase.BUILDING
    assert after(*START[:2]).phase(ME) is WorkerPhase.READY
    assert after(*START).members == [ME]


def test_a_name_that_nobody_was_started_for_is_missing() -> None:
    assert after().missing == [OTHER]


@pytest.mark.parametrize("notice", NOTICES)
def test_any_notice_about_a_member_fences_it_and_asks_for_a_new_plan(notice) -> None:
    crew = after(*START)
    assert crew.handle(notice(ME, 9.0)) == (Command.FENCE, Command.REPLAN)
    assert crew.phase(ME) is WorkerPhase.LOST


@pytest.mark.parametrize("notice", NOTICES)
def test_later_notices_about_a_lost_worker_are_no_error_and_no_news(notice) -> None:
    crew = after(*START, m.ConnectionClosed)
    assert crew.handle(notice(ME, 9.0)) == ()
    assert crew.phase(ME) is WorkerPhase.LOST


@pytest.mark.parametrize("notice", NOTICES)
@pytest.mark.parametrize(
    "before",
    [
        [],
        [m.SaidHello],
        [m.SaidHello, m.IsReady],
        [m.SaidHello, m.IsReady, m.CopyBegun, m.StateCopied],
    ],
    ids=["starting", "building", "ready", "copying"],
)
def test_a_joiner_that_is_lost_is_forgotten_without_a_new_plan(before, notice) -> None:
    crew = after(*before)
    assert crew.handle(notice(ME, 9.0)) == (Command.FENCE, Command.FORGET)


def test_the_place_of_a_lost_worker_may_be_taken_again() -> None:
    crew = after(
        *START, m.ProcessExited, m.Invited, m.SaidHello, m.IsReady, m.CopyBegun, m.StateCopied
    )
    assert crew.phase(ME) is WorkerPhase.COPYING
    crew.handle(m.Entered(ME, 9.0))
    assert crew.members == [ME]


def test_a_member_that_changes_sides_builds_and_copies_again() -> None:
    crew = after(*START, m.Left)
    assert crew.phase(ME) is WorkerPhase.BUILDING
    crew.handle(m.IsReady(ME, 8.0))
    crew.handle(m.CopyBegun(ME, 9.0))
    assert crew.phase(ME) is WorkerPhase.COPYING


def test_the_end_of_a_worker_that_is_done_is_no_loss() -> None:
    crew = after(*START, m.Ended)
    assert crew.handle(m.ProcessExited(ME, 9.0)) == ()
    assert crew.phase(ME) is WorkerPhase.FINISHED


@pytest.mark.parametrize("wrong", [m.Entered, m.StateCopied, m.Left, m.IsReady, m.Invited])
def test_what_cannot_follow_is_an_error_that_tells_the_story(wrong) -> None:
    crew = after()
    with pytest.raises(InvalidTransition) as error:
        crew.handle(wrong(ME, 9.0))
    assert f"worker 0.0: no rule for {wrong.__name__} while STARTING" in str(error.value)
    assert "known, STARTING" in str(error.value)
    assert crew.phase(ME) is WorkerPhase.STARTING


def test_the_story_has_every_step_with_its_time() -> None:
    with pytest.raises(InvalidTransition) as error:
        after(*START, m.SilentTooLong).handle(m.Entered(ME, 9.0))
    assert str(error.value).splitlines() == [
        "worker 0.0: no rule for Entered while LOST",
        "  known, STARTING",
        "  0.00s SaidHello: STARTING -> BUILDING",
        "  1.00s IsReady: BUILDING -> READY",
        "  2.00s Entered: READY -> MEMBER",
        "  3.00s SilentTooLong: MEMBER -> LOST",
    ]


def test_a_long_copy_does_not_make_the_story_long() -> None:
    crew = after(m.SaidHello, m.IsReady, m.CopyBegun, *[m.StateCopied] * 1000)
    with pytest.raises(InvalidTransition) as error:
        crew.handle(m.SaidHello(ME, 9.0))
    assert len(str(error.value).splitlines()) == 5
