import io
import math
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.cli.terminal.view import Forgiving, LiveView, PlainView, make_view
from holdfast.observability.events import (
    CheckpointFailed,
    CheckpointSaved,
    FaultFired,
    Interrupted,
    JoinFailed,
    Recovered,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerMoved,
    WorkerReady,
    WorkerStep,
)
from holdfast.observability.progress import Curve, RunProgress

START = RunStarted(
    at_s=0.0,
    pipelines=2,
    stages=3,
    microbatches=8,
    steps=100,
    schedule="zero-bubble",
    reason="stages of equal measured cost",
    cut=(2, 4),
)
DONE = RunFinished(at_s=9.0, parameters_sha256="ab12", peak_memory_bytes={})
READY = [
    WorkerReady(at_s=0.0, worker=f"{d}.{s}", pid=1, versions={}) for d in range(2) for s in range(3)
]


def step(number, loss=2.5, skipped=False):
    return StepFinished(
        at_s=float(number),
        step=number,
        loss=loss,
        gradient_norm=1.0,
        tokens=4000,
        took_s=2.0,
        skipped=skipped,
    )


LOST = WorkerLost(at_s=5.0, worker="1.0", step=5, cause="signal SIGKILL")
RECOVERED = Recovered(
    at_s=5.1,
    epoch=2,
    step=5,
    cause="death",
    workers=("1.0",),
    fault_s=5.0,
    notice_s=5.006,
    plan_s=5.031,
    resumed_s=5.084,
    redone=3,
    operations=17,
    members=5,
    period_s=0.412,
    reason="1 of 6 workers is missing",
    num_lost=1,
)
JOINED = WorkerJoined(at_s=20.0, worker="1.0", stage=0, step=20, copied_bytes=2_100_000, took_s=0.4)
BACK = WentBack(at_s=9.0, lost_stage=2, to_step=4, checkpoint="run/step-4", reason="no peer left")
REJOINED = replace(
    RECOVERED, cause="join", redone=0, members=6, period_s=0.0, reason="", num_lost=0
)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Screen:
    """A live view on a string, and what its user sees in the end."""

    def __init__(self, encoding="utf-8", verbose=False):
        self.clock = Clock()
        self.bytes = io.BytesIO()
        stream = io.TextIOWrapper(self.bytes, encoding=encoding, write_through=True)
        console = Console(
            file=stream, force_terminal=True, width=100, height=40, color_system=None, _environ={}
        )
        self.view = LiveView(console, now=self.clock, verbose=verbose)

    def show(self, *events):
        for event in events:
            self.view.handle(event)
        self.view.close()
        return self.drawings()[-1]

    def drawings(self):
        """Each drawing begins with the corner of the panel."""
        text = self.bytes.getvalue().decode()
        corner = "╭" if "╭" in text else "+-"
        return [corner + part for part in text.split(corner) if "step " in part]


def test_the_panel_shows_how_far_how_well_and_how_fast():
    seen = Screen().show(START, *READY, *(step(n, loss=3 - n / 100) for n in range(25)))
    assert "2 pipelines x 3 stages, 8 micro-batches a step, 100 steps, zero-bubble" in seen
    assert "step 25/100" in seen
    assert "loss 2.7600" in seen
    assert "2,000 tokens/s" in seen
    assert "ETA 0:02:30" in seen


def test_the_speed_of_a_job_without_tokens_is_in_samples():
    assert "2,000 samples/s" in Screen().show(replace(START, samples=4000), *READY, step(0))
    assert "2,000 tokens/s" in Screen().show(replace(START, samples=40), *READY, step(0))


def test_a_falling_loss_falls_in_the_sparkline():
    seen = Screen().show(START, *(step(n, loss=3 - n / 100) for n in range(8)))
    assert "█▇▆▅▄▃▂▁" in seen


def test_the_grid_shows_what_each_worker_does():
    back = StepTakenBack(at_s=1.0, worker="1.2", step=4, reason="clipped")
    moved = WorkerStep(at_s=1.0, worker="0.1", step=4, ops=())
    seen = Screen().show(START, *READY[:4], moved, back)
    rows = [line for line in seen.splitlines() if "pipeline " in line]
    assert "ready" in rows[-2]
    assert "running 5" in rows[-2]
    assert "starting" in rows[-1]
    assert "rolled back" in rows[-1]
    assert "stage 0" in seen
    assert "stage 2" in seen


def test_a_finished_run_ends_with_its_last_loss_and_its_mishaps():
    seen = Screen().show(START, *READY, step(0), step(1, math.nan, skipped=True), step(2), DONE)
    assert "finished 3 steps, loss 2.5000, 1 skipped (NaN or Inf)" in seen
    assert "done 3" in seen
    assert "ETA" not in seen


def test_a_failed_run_ends_with_the_reason_as_it_was_given():
    seen = Screen().show(START, step(0), RunFailed(at_s=1.0, reason="worker 0.1 [stage] ended"))
    assert "failed after 1 step: worker 0.1 [stage] ended" in seen


def test_a_run_that_was_interrupted_is_stopped_not_failed():
    lines = plain(step(0), Interrupted(at_s=1.0), RunFailed(at_s=1.0, reason="interrupted; resume"))
    assert lines[-1] == "stopped after 1 step: interrupted; resume"


def test_before_the_first_step_the_panel_says_so():
    assert "no step finished yet" in Screen().show(START)


def cells(seen, pipeline):
    row = next(line for line in seen.splitlines() if f"pipeline {pipeline} " in line)
    return row.strip(" │").removeprefix(f"pipeline {pipeline}").split("  ")


def words(seen, pipeline):
    return [cell.strip() for cell in cells(seen, pipeline) if cell.strip()]


def test_the_panel_shows_who_is_missing():
    seen = Screen().show(START, *READY, step(4), LOST, RECOVERED, step(5))
    assert "5 of 6 workers" in seen
    assert words(seen, 1) == ["lost 6", "running 6", "running 6"]


def test_what_has_happened_stays_above_the_panel():
    screen = Screen()
    screen.show(START, *READY, step(4), LOST, RECOVERED, step(5))
    text = screen.bytes.getvalue().decode()
    lost = text.index("step 6  worker 1.0 lost (signal SIGKILL); stage 0 is also on 0.0")
    assert lost < text.index("step 6  recovered in 84 ms: micro-batches re-routed over 5 of 6")
    assert text.count("worker 1.0 lost") == 1
    assert "noticed after" not in text


def test_with_verbose_the_details_are_above_the_panel_as_well():
    screen = Screen(verbose=True)
    screen.show(START, *READY, LOST, RECOVERED)
    assert "    noticed after 6 ms, planned after 31 ms" in screen.bytes.getvalue().decode()


def test_the_panel_counts_all_workers_while_nobody_is_missing():
    assert "6 of 6 workers" in Screen().show(START, *READY, step(0))


def test_the_panel_says_how_to_join_until_the_run_ends():
    start = replace(START, address="127.0.0.1:40123")
    assert "join with: holdfast worker --join 127.0.0.1:40123" in Screen().show(start, *READY)
    assert "--join" not in Screen().show(start, *READY, DONE)
    assert "--join" not in Screen().show(START, *READY)


def test_a_report_from_before_its_death_does_not_bring_a_worker_back():
    late = WorkerStep(at_s=5.0, worker="1.0", step=5, ops=())
    back = StepTakenBack(at_s=5.0, worker="1.0", step=5, reason="clipped")
    seen = Screen().show(START, *READY, LOST, late, back, step(5), DONE)
    assert words(seen, 1) == ["lost 6", "done 6", "done 6"]
    assert "5 of 6 workers" in seen


def test_a_worker_that_comes_back_counts_from_when_it_has_joined():
    asks = WorkerReady(at_s=6.0, worker="1.0", pid=2, versions={})
    before = (START, *READY, LOST, RECOVERED, step(5), asks, step(6))
    seen = Screen().show(*before)
    assert words(seen, 1)[0] == "joining 6"
    assert "5 of 6 workers" in seen
    seen = Screen().show(*before, JOINED, REJOINED)
    assert words(seen, 1)[0] == "joined 21"
    assert "6 of 6 workers" in seen
    assert words(Screen().show(*before, JOINED, REJOINED, step(21)), 1)[0] == "running 22"


def test_a_worker_whose_join_failed_is_lost_again():
    asks = WorkerReady(at_s=6.0, worker="1.0", pid=2, versions={})
    failed = JoinFailed(at_s=7.0, worker="1.0", reason="its source died")
    assert words(Screen().show(START, *READY, LOST, asks, failed), 1)[0] == "lost 6"


def test_a_refused_join_under_the_name_of_a_member_leaves_the_member_running():
    failed = JoinFailed(at_s=7.0, worker="1.0", reason="the name is alive")
    nobody = JoinFailed(at_s=7.0, worker="", reason="nobody is missing")
    assert words(Screen().show(START, *READY, step(0), failed, nobody), 1)[0] == "running 1"


def test_a_worker_that_changes_its_stage_shows_it_and_counts_again_afterwards():
    away = replace(RECOVERED, cause="move", workers=("0.1",), members=5)
    moved = WorkerMoved(
        at_s=8.0, worker="0.1", from_stage=1, to_stage=0, step=7, reason="stage 0 is starved"
    )
    assert "5 of 6 workers" in Screen().show(START, *READY, step(6), away)
    seen = Screen().show(START, *READY, step(6), away, moved, replace(away, members=6))
    assert words(seen, 0) == ["running 7", "moved 8 at stage 0", "running 7"]
    assert "6 of 6 workers" in seen


def test_a_worker_at_the_stage_of_its_name_again_shows_no_stage():
    away = replace(JOINED, stage=2)
    assert words(Screen().show(START, *READY, away), 1)[0] == "joined 21 at stage 2"
    assert words(Screen().show(START, *READY, away, JOINED), 1)[0] == "joined 21"


def test_a_second_loss_shows_at_once():
    second = replace(LOST, worker="0.2")
    assert "4 of 6 workers" in Screen().show(START, *READY, step(4), LOST, RECOVERED, second)


def test_a_place_that_was_never_filled_is_no_member_until_somebody_joins_there():
    seen = Screen().show(START, *READY[:5], step(0), DONE)
    assert words(seen, 1) == ["done 1", "done 1", "starting"]
    assert "5 of 6 workers" in seen
    seen = Screen().show(START, *READY[:5], step(0), READY[5], step(1))
    assert words(seen, 1) == ["running 2", "running 2", "joining"]


def test_a_resumed_run_counts_from_where_it_was_resumed():
    assert "step 40/100" in Screen().show(replace(START, first_step=40), *READY)


def progress_of(*events):
    progress = RunProgress()
    for event in events:
        progress.handle(event)
    return progress


def test_after_going_back_progress_and_time_left_count_from_there():
    progress = progress_of(START, *READY, *(step(n) for n in range(9)), LOST, BACK)
    assert (progress.num_done, progress.eta_s) == (4, 96 * 2.0)
    progress.handle(step(4))
    assert (progress.num_done, progress.eta_s) == (5, 95 * 2.0)
    assert [state.step for state in progress.workers.values()] == [4, 4, 4, 5, 4, 4]


def test_after_going_back_each_worker_shows_the_step_it_is_at():
    seen = Screen().show(START, *READY, *(step(n) for n in range(9)), BACK)
    assert "step 4/100" in seen
    assert words(seen, 0) == ["rolled back 4"] * 3


def test_after_going_back_to_the_beginning_no_step_is_done():
    whole = replace(BACK, to_step=0, checkpoint="")
    seen = Screen().show(START, *READY, step(0), step(1), whole)
    assert "step 0/100" in seen
    assert words(seen, 0) == ["rolled back"] * 3


def test_steps_that_run_again_are_drawn_and_counted_once():
    bad = step(2, loss=7.0, skipped=True)
    once = [step(0, loss=9.0), step(1, loss=8.0), bad, step(3, loss=6.0)]
    again = progress_of(START, *once, replace(BACK, to_step=1), *once[1:], step(4, loss=5.0))
    straight = progress_of(START, *once, step(4, loss=5.0))
    assert again.curve.draw("01234") == straight.curve.draw("01234") == "43210"
    assert again.num_skipped == 1


def test_redraws_are_at_most_four_a_second():
    screen = Screen()
    screen.view.handle(START)
    for number in range(100):
        screen.clock.now_s += 0.01
        screen.view.handle(step(number))
    assert len(screen.drawings()) <= 5
    assert "step 100/100" in screen.show()


def test_a_terminal_without_unicode_gets_ascii():
    screen = Screen("ascii")
    seen = screen.show(START, *(step(n, loss=9 - n) for n in range(8)))
    assert "#*+=-:." in seen


def test_many_pipelines_are_cut_to_what_fits():
    events = [WorkerReady(at_s=0.0, worker=f"{d}.0", pid=1, versions={}) for d in range(20)]
    seen = Screen().show(*events)
    assert "pipeline 15" in seen
    assert "pipeline 16" not in seen
    assert "and 4 more" in seen


def test_closing_twice_draws_nothing_more():
    screen = Screen()
    screen.show(START)
    before = screen.bytes.getvalue()
    screen.view.close()
    assert screen.bytes.getvalue() == before


class GonePipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.parametrize(
    "view",
    [
        PlainView(GonePipe()),
        LiveView(
            Console(file=Forgiving(GonePipe()), force_terminal=True, _environ={}), now=Clock()
        ),
    ],
)
def test_a_view_nobody_reads_any_more_does_not_stop_the_run(view):
    stdout = sys.stdout
    for event in (START, step(0), DONE):
        view.handle(event)
    view.close()
    assert sys.stdout is stdout


def plain(*events, seconds_between=0.0, verbose=False):
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream, now=clock, verbose=verbose)
    for event in events:
        view.handle(event)
        clock.now_s += seconds_between
    view.close()
    return stream.getvalue().splitlines()


def test_plain_lines_tell_start_progress_and_end():
    assert plain(START, step(0), DONE) == [
        "2 pipelines x 3 stages, 8 micro-batches a step, 100 steps, zero-bubble",
        "worker P.S runs stage S of pipeline P; every pipeline is a replica of the model",
        "step 1/100  loss 2.5000  2,000 tokens/s  2.000 s/step  ETA 0:03:18",
        "finished 1 step, loss 2.5000",
    ]


def test_a_character_the_stream_cannot_hold_becomes_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    PlainView(stream).handle(RunFailed(at_s=1.0, reason="naïve"))
    assert stream.buffer.getvalue() == b"failed after 0 steps: na?ve\n"


def test_a_limit_by_device_memory_is_told():
    told = "at most 3 micro-batches in flight a worker: device memory"
    assert plain(replace(START, in_flight=3)) == [*plain(START), told]


def test_plain_lines_come_at_most_once_a_second_and_never_miss_the_last_step():
    lines = plain(*(step(n) for n in range(36)), seconds_between=0.125)
    assert [line.split()[1] for line in lines] == ["1", "9", "17", "25", "33", "36"]


def test_plain_lines_tell_what_went_wrong_at_once():
    lines = plain(
        START,
        step(0),
        step(1, loss=math.inf, skipped=True),
        StepTakenBack(at_s=1.0, worker="1.2", step=1, reason="not finite"),
        CheckpointSaved(at_s=1.0, step=2, path="run/step-2", took_s=0.1),
        RunFailed(at_s=2.0, reason="worker 0.1 ended with signal 9"),
    )
    assert lines[3].endswith("NaN or Inf: skipped")
    assert lines[4:] == [
        "step 2  checkpoint saved",
        "failed after 2 steps: worker 0.1 ended with signal 9",
    ]


UNSAVED = CheckpointFailed(
    at_s=1.0, step=20, worker="0.1", reason="No space left on device", next_writer="", newest=10
)
NO_CHECKPOINT = (
    "NO CHECKPOINT of step 20 (worker 0.1: No space left on device); the last is of step 10"
)


def test_r6_a_checkpoint_that_failed_is_told_at_once_and_again_at_the_end():
    finished = RunFinished(at_s=9.0, parameters_sha256="x", peak_memory_bytes={})
    lines = plain(START, UNSAVED, step(1), finished)
    assert lines[2] == NO_CHECKPOINT
    assert lines[-2:] == ["finished 2 steps, loss 2.5000", NO_CHECKPOINT]
    tried = replace(UNSAVED, next_writer="1.1", worker="", newest=-1)
    assert plain(tried) == [
        "NO CHECKPOINT of step 20 (No space left on device); worker 1.1 tries next"
    ]


def test_r6_the_panel_shows_it_until_a_checkpoint_is_whole():
    progress = RunProgress()
    for event in (START, UNSAVED, step(1)):
        progress.handle(event)
    assert progress.unsaved == UNSAVED
    progress.handle(CheckpointSaved(at_s=3.0, step=30, path="run/step-30", took_s=0.1))
    assert progress.unsaved is None


def test_plain_lines_tell_of_losses_and_recoveries_and_count_steps_from_one():
    fired = FaultFired(at_s=4.9, worker="1.0", fault="kill 1.0@6.F0", step=5, point="F0")
    assert plain(fired, LOST, RECOVERED) == [
        "step 6  injected fault: kill 1.0@6.F0",
        "step 6  worker 1.0 lost (signal SIGKILL)",
        "step 6  recovered in 84 ms; 0 steps lost; 5 workers",
    ]


def test_of_a_run_that_is_known_plain_lines_tell_who_else_holds_the_stage_of_the_lost():
    second, third = (replace(LOST, worker=worker) for worker in ("0.1", "1.1"))
    assert plain(START, *READY, LOST, RECOVERED, second, third)[2:] == [
        "step 6  worker 1.0 lost (signal SIGKILL); stage 0 is also on 0.0",
        "step 6  recovered in 84 ms: micro-batches re-routed over 5 of 6 workers; 0 steps lost",
        "step 6  worker 0.1 lost (signal SIGKILL); stage 1 is also on 1.1",
        "step 6  worker 1.1 lost (signal SIGKILL); no other worker holds stage 1",
    ]


def test_who_has_moved_to_a_stage_holds_it_as_well():
    moved = WorkerMoved(at_s=8.0, worker="0.1", from_stage=1, to_stage=0, step=7, reason="")
    lost = plain(START, *READY, moved, LOST)[-1]
    assert lost.endswith("stage 0 is also on 0.0, 0.1")


def test_a_recovery_that_went_back_tells_how_many_steps_are_trained_again():
    again = replace(RECOVERED, thrown_away=4, members=6)
    line = "step 6  recovered in 84 ms; 4 steps to train again; 6 of 6 workers"
    assert plain(START, *READY, again)[-1] == line


@pytest.mark.parametrize(
    ("cause", "words"),
    [("join and move", "join, move"), ("link", "lost connection"), ("stuck", "no progress")],
)
def test_a_stop_without_a_loss_names_its_cause(cause, words):
    assert plain(replace(REJOINED, cause=cause)) == [
        f"step 6  resumed after 84 ms ({words}); 6 workers"
    ]


def test_the_stop_that_an_interrupt_needs_is_no_news():
    assert plain(replace(REJOINED, cause="interrupt")) == []


def test_plain_lines_tell_of_joins_and_moves():
    moved = WorkerMoved(
        at_s=8.0, worker="0.1", from_stage=1, to_stage=0, step=7, reason="stage 0 is starved"
    )
    assert plain(
        JOINED,
        REJOINED,
        moved,
        JoinFailed(at_s=7.0, worker="1.0", reason="its source died"),
        JoinFailed(at_s=7.0, worker="", reason="nobody is missing"),
    ) == [
        "step 21  worker 1.0 joined at stage 0 (copied 2.1 MB in 0.4 s)",
        "step 6  resumed after 84 ms (join); 6 workers",
        "step 8  worker 0.1 moved from stage 1 to stage 0",
        "worker 1.0 could not join: its source died",
        "a worker could not join: nobody is missing",
    ]


def test_a_death_and_a_join_together_are_a_recovery():
    [line] = plain(replace(RECOVERED, cause="join and death", redone=1, members=1))
    assert line == "step 6  recovered in 84 ms; 0 steps lost; 1 worker"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (84_320, "84.3 kB"), (3_000_000_000, "3.0 GB")],
)
def test_a_size_is_told_in_a_fitting_unit(num_bytes, text):
    [line] = plain(replace(JOINED, copied_bytes=num_bytes))
    assert f"(copied {text} in 0.4 s)" in line


def test_plain_lines_tell_how_to_join_and_from_where_a_run_is_resumed():
    start = replace(START, address="127.0.0.1:40123", first_step=40)
    assert plain(start)[2:] == [
        "resumed after step 40",
        "replacements join with: holdfast worker --join 127.0.0.1:40123",
    ]
    assert len(plain(START)) == 2


def test_the_command_to_join_is_never_folded():
    start = replace(START, address="127.0.0.1:40123", join_with=f"--run-dir /{'long/' * 30}")
    assert len(plain(start)) == 3


def test_verbose_lines_tell_why_and_how():
    start = replace(START, limits="heartbeat timeout 10 s")
    assert plain(start, RECOVERED, verbose=True)[2:] == [
        "    plan: stages of equal measured cost (parallel.cut=[2, 4]; set it for another cut)",
        "    heartbeat timeout 10 s",
        "step 6  recovered in 84 ms: micro-batches re-routed over 5 of 6 workers; 0 steps lost",
        "    noticed after 6 ms, planned after 31 ms; 3 operations run again, 17 were left; "
        "0.412 s/step",
        "        planned",
        "    plan: 1 of 6 workers is missing",
    ]


def test_plain_lines_tell_of_going_back_and_go_on_from_there():
    back = replace(BACK, thrown_away=5)
    lines = plain(START, step(8), step(9), back, step(4), RunFailed(at_s=9.0, reason="no more"))
    assert lines[2:] == [
        "step 9/100  loss 2.5000  2,000 tokens/s  2.000 s/step  ETA 0:03:02",
        "step 10  rolled back to the checkpoint of step 4; 5 steps to train again",
        "    no peer left",
        "step 5/100  loss 2.5000  2,000 tokens/s  2.000 s/step  ETA 0:03:10",
        "failed after 5 steps: no more",
    ]


def test_a_step_that_was_gone_back_on_before_it_was_told_is_not_told():
    whole = replace(BACK, checkpoint="", to_step=0)
    lines = plain(START, step(8), step(9), whole, RunFailed(at_s=9.0, reason="no more"))
    assert lines[3:] == [
        "step 1  rolled back to the initial parameters (no checkpoint yet)",
        "    no peer left",
        "failed after 0 steps: no more",
    ]


def test_a_pipe_or_file_gets_plain_lines():
    assert isinstance(make_view(io.StringIO()), PlainView)


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_the_live_panel_and_a_dumb_one_plain_lines(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_view(FakeTerminal()), LiveView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(FakeTerminal()), PlainView)


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = FakeTerminal()
    view = make_view(stream)
    view.handle(START)
    view.handle(step(0))
    view.close()
    assert "step 1/100" in stream.getvalue()
    assert "\x1b[3" not in stream.getvalue()  # the codes of foreground colours


def test_a_curve_of_any_length_keeps_its_shape_in_a_bounded_number_of_glyphs():
    curve = Curve(num_points=8)
    for number in range(1000):
        curve.add(float(number))
    drawn = curve.draw("01234567")
    assert len(drawn) <= 8
    assert drawn[0] == "0"
    assert drawn[-1] == "7"
    assert list(drawn) == sorted(drawn)


def test_a_flat_curve_and_one_without_numbers_can_be_drawn():
    flat, empty = Curve(), Curve()
    for _ in range(3):
        flat.add(1.0)
        empty.add(math.nan)
    assert flat.draw("ab") == "aaa"
    assert empty.draw("ab") == ""
