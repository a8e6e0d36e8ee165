import io
import math
import sys

import pytest
from rich.console import Console

from holdfast.observability.events import (
    CheckpointSaved,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerReady,
    WorkerStep,
)
from holdfast.observability.progress import Curve
from holdfast.observability.view import Forgiving, LiveView, PlainView, make_view

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


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Screen:
    """A live view on a string, and what its user sees in the end."""

    def __init__(self, encoding="utf-8"):
        self.clock = Clock()
        self.bytes = io.BytesIO()
        stream = io.TextIOWrapper(self.bytes, encoding=encoding, write_through=True)
        console = Console(
            file=stream, force_terminal=True, width=100, height=40, color_system=None, _environ={}
        )
        self.view = LiveView(console, now=self.clock)

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
    assert "went back" in rows[-1]
    assert "stage 0" in seen
    assert "stage 2" in seen


def test_a_finished_run_ends_with_its_last_loss_and_its_mishaps():
    seen = Screen().show(START, *READY, step(0), step(1, math.nan, skipped=True), step(2), DONE)
    assert "finished 3 steps, loss 2.5000  1 skipped" in seen
    assert "done 3" in seen
    assert "ETA" not in seen


def test_a_failed_run_ends_with_the_reason_as_it_was_given():
    seen = Screen().show(START, step(0), RunFailed(at_s=1.0, reason="worker 0.1 [stage] ended"))
    assert "failed after 1 step: worker 0.1 [stage] ended" in seen


def test_before_the_first_step_the_panel_says_so():
    assert "no step finished yet" in Screen().show(START)


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


def plain(*events, seconds_between=0.0):
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream, now=clock)
    for event in events:
        view.handle(event)
        clock.now_s += seconds_between
    view.close()
    return stream.getvalue().splitlines()


def test_plain_lines_tell_start_progress_and_end():
    assert plain(START, step(0), DONE) == [
        "2 pipelines x 3 stages, 8 micro-batches a step, 100 steps, zero-bubble; "
        "stages of equal measured cost",
        "step 1/100  loss 2.5000  2,000 tokens/s  2.000 s/step  ETA 0:03:18",
        "finished 1 step, loss 2.5000",
    ]


def test_a_character_the_stream_cannot_hold_becomes_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    PlainView(stream).handle(RunFailed(at_s=1.0, reason="naïve"))
    assert stream.buffer.getvalue() == b"failed after 0 steps: na?ve\n"


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
    assert lines[2].endswith("not finite: skipped")
    assert lines[3:] == [
        "worker 1.2 took back step 2: not finite",
        "checkpoint of step 2 saved to run/step-2",
        "failed after 2 steps: worker 0.1 ended with signal 9",
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
