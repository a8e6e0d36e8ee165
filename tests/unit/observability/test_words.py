"""Every line that a run prints: short, in words that need no glossary; details if asked for."""

import io
from dataclasses import fields, replace

import pytest

from helpers.sample_events import EVENTS
from holdfast.cli.terminal.view import PlainView
from holdfast.observability.events import (
    CheckpointSaved,
    Diagnosed,
    IntervalChosen,
    JoinFailed,
    LogChanged,
    MitigationChosen,
    PlanSwitched,
    ReplayBegan,
    RunStarted,
    StageRebuilt,
    WentBack,
    WorkerReplaced,
    WorkerStuck,
)
from holdfast.observability.lines import line
from holdfast.observability.text import INDENT, WIDTH, duration, folded, listed

START = next(event for event in EVENTS if isinstance(event, RunStarted))
WORDS = ("reason", "evidence", "cause", "limits", "fault", "state", "stack")


def sample(kind, **changed):
    return replace(next(event for event in EVENTS if isinstance(event, kind)), **changed)


def plain(*events, verbose=False):
    stream = io.StringIO()
    view = PlainView(stream, verbose=verbose)
    for event in events:
        view.handle(event)
    view.close()
    return stream.getvalue().splitlines()


# --- how long lines are ---


def long_winded(event):
    """The same with texts and names as long as they come."""
    names = {"worker": "127.63"}
    texts = {name: "some words of a reason " * 20 for name in WORDS}
    known = {field.name for field in fields(event)} - {"cause", "state"}
    return replace(event, **{n: v for n, v in (names | texts).items() if n in known})


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_line_of_any_event_is_wider_than_100_columns(event):
    for shown in (event, long_winded(event)):
        for verbose in (False, True):
            assert max(map(len, plain(START, shown, verbose=verbose))) <= WIDTH


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_what_is_usual_fits_80_columns_in_one_or_two_lines(event):
    lines = plain(event)
    assert all(len(text) <= 80 for text in lines)
    assert len(lines) <= 2 + 2 * isinstance(event, RunStarted)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_with_verbose_all_words_of_an_event_are_shown(event):
    shown = " ".join(" ".join(plain(event, verbose=True)).split())
    for name in {field.name for field in fields(event)} & set(WORDS) - {"cause"}:
        assert " ".join(getattr(event, name).split()) in shown, name


def test_a_line_that_is_too_long_goes_on_below_with_whole_words():
    first, *others = folded("step 3  " + "word " * 40)
    assert first.startswith("step 3  word")
    assert all(text.startswith(INDENT + "word") for text in others)
    assert " ".join([first, *others]).split().count("word") == 40


def test_a_command_has_a_line_of_its_own_which_is_never_folded():
    command = f"holdfast train --resume '/{'long place/' * 12}'"
    text = f"all workers were stopped. Go on from the last checkpoint with: {command}"
    assert folded(text)[-2:] == [text.removesuffix(f" {command}"), INDENT + command]


def test_a_path_is_never_broken():
    assert folded("warning: " + "x" * 200)[1:] == [INDENT + "x" * 200]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0464, "46 ms"), (0.9996, "1.0 s"), (4.25, "4.2 s"), (250.4, "250 s")],
)
def test_a_duration_is_told_with_the_digits_that_count(seconds, text):
    assert duration(seconds) == text


def test_of_many_names_the_first_are_listed():
    assert listed(["0.0", "1.0"]) == "0.0, 1.0"
    assert listed([f"{d}.0" for d in range(7)]) == "0.0, 1.0, 2.0, 3.0 and 3 more"


# --- slowness ---


@pytest.mark.parametrize(
    ("cause", "subject", "expected"),
    [
        (
            "slow computation",
            "0.1",
            "step 8  straggler: worker 0.1 takes 3.5x as long since step 6",
        ),
        ("slow link", "0.0-0.1", "step 8  slow link 0.0-0.1: +15.0 ms a transfer since step 6"),
        ("slow machine", "a", "step 8  slow machine a: its workers take 3.5x as long since step 6"),
        (
            "imbalance of the model",
            "stage 3",
            "step 8  uneven stages: stage 3 takes 3.5x as long as the others",
        ),
        (
            "imbalance of the data",
            "data",
            "step 8  uneven micro-batches: the longest take 3.5x the median",
        ),
    ],
)
def test_who_or_what_is_slow_is_one_short_line(cause, subject, expected):
    told = sample(Diagnosed, cause=cause, subject=subject)
    assert line(told) == expected
    assert line(replace(told, hint="short of CPU time")) == f"{expected} (short of CPU time)"


def test_slowness_from_the_start_names_no_step():
    told = sample(Diagnosed, cause="slow computation", subject="0.1", since=-7)
    assert line(told) == "step 8  straggler: worker 0.1 takes 3.5x as long from the start"


CHOSEN = sample(MitigationChosen, subjects=("0.1",), period_s=0.318, new_period_s=0.125)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("re-plan", "re-planned around 0.1"),
        ("change places", "workers change stages because of 0.1"),
        ("drop", "a worker is left out because of 0.1"),
        ("go back", "back to the plan before 0.1 was slow"),
    ],
)
def test_what_is_done_about_slowness_is_told_with_what_it_gains(action, words):
    chosen = replace(CHOSEN, action=action)
    assert line(chosen) == f"step 8  {words}: 0.318 -> 0.125 s/step planned"


def test_what_is_only_observed_is_told_as_not_done():
    said = line(replace(CHOSEN, only_observed=True))
    assert said.startswith("step 8  not done (mitigation.mode=observe): re-plan for 0.1: ")


def test_waiting_is_no_news_but_the_end_of_watching_is():
    waits = replace(CHOSEN, action="wait", reason="stragglers are not looked for")
    assert line(waits) is None
    assert line(replace(waits, subjects=())) is None  # nobody is slow any more
    stopped = replace(waits, subjects=(), period_s=0.0)
    assert line(stopped) == "step 8  stragglers are not looked for"


def test_a_new_plan_is_told_only_if_nothing_else_told_of_it():
    assert line(sample(PlanSwitched)) is None
    better = sample(PlanSwitched, cause="better plan")
    assert line(better) == "step 10  better plan in use, without a stop"


# --- stages and logs ---


def test_a_replay_tells_who_computes_what_again():
    assert line(sample(ReplayBegan)) == (
        "step 6  stage 1 lost: 2 workers replay steps 3 to 5 from the log"
    )
    both = sample(ReplayBegan, stages=(1, 2), workers=("0.3",))
    assert line(both).startswith("step 6  stages 1, 2 lost: 1 worker replays steps")


def test_a_rebuilt_stage_tells_from_what():
    assert line(sample(StageRebuilt)) == "step 6  stage 1 rebuilt from the log in 50 ms"
    taken = sample(StageRebuilt, operations=0)
    assert line(taken) == "step 6  stage 1 taken from the checkpoint of step 5"
    assert line(replace(taken, version=0)) == "step 1  stage 1 taken from the start"


def test_a_log_that_stops_is_told_and_one_that_goes_on_only_with_verbose():
    stopped = sample(LogChanged)
    assert line(stopped) == "step 7  log of worker 0.1 stopped: No space left on device"
    again = replace(stopped, logging=True, worker="", reason="there is room again")
    assert plain(again) == []
    assert plain(again, verbose=True) == [f"{INDENT}step 7  log: there is room again"]


def test_a_rollback_to_copies_in_memory_says_so():
    back = sample(WentBack, checkpoint="", thrown_away=1)
    assert line(back).startswith(
        "step 3  rolled back to the copies in memory of step 1; 1 step to train again\n"
    )


# --- workers and checkpoints ---


def test_a_stuck_worker_is_told_with_what_it_does_and_where():
    assert line(sample(WorkerStuck)) == (
        "step 4  worker 0.1 is stuck: loading data for 2.1 s (usually 0.1 s)\n"
        "at job.py:3 in __getitem__"
    )
    assert line(sample(WorkerStuck, usual_s=0.0, where="")) == (
        "step 4  worker 0.1 is stuck: loading data for 2.1 s"
    )


def test_a_worker_that_is_started_again_is_told_with_the_number_of_tries():
    assert line(sample(WorkerReplaced)) == (
        "restarting worker 1.0 (try 1 of 3); it joins when it is ready"
    )


def test_who_could_not_join_is_told_with_the_reason():
    assert line(sample(JoinFailed, worker="")) == "a worker could not join: ended while it copied"


def test_a_checkpoint_is_told_without_its_path_which_verbose_shows():
    saved = sample(CheckpointSaved)
    assert plain(saved) == ["step 1  checkpoint saved"]
    assert plain(saved, verbose=True)[1] == f"{INDENT}run/step-1, written in 100 ms"


def test_a_chosen_interval_is_told():
    assert line(sample(IntervalChosen)) == "step 12  checkpoints every 4 steps from here on"
