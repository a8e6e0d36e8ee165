"""A run as its user watches it: a live panel on a terminal, plain lines anywhere else.

Views only read events. A view that cannot write falls silent; it never stops the training.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.observability.details import details
from holdfast.observability.events import (
    Event,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    WentBack,
)
from holdfast.observability.lines import INTERRUPTED, NAMES, line, unsaved
from holdfast.observability.progress import RunProgress, WorkerState
from holdfast.observability.run_lines import layout
from holdfast.observability.text import INDENT, WIDTH, count, folded

_REDRAW_S = 0.25
_LINE_S = 1.0
_MAX_ROWS = 16  # pipelines shown; a larger grid would not fit a terminal
_STYLES = {
    "starting": "dim",
    "ready": "cyan",
    "running": "green",
    "rolled back": "yellow",
    "lost": "red",
    "joining": "cyan",
    "joined": "green",
    "moved": "yellow",
    "done": "dim",
}

Clock = Callable[[], float]


class View(Protocol):
    def handle(self, event: Event) -> None: ...

    def close(self) -> None:
        """Show the last state and give the terminal back. May be called twice."""
        ...


class Forgiving:
    """A text stream that may break: what cannot be written is lost, and nothing raises.

    (Rich's console would end the process when the reader of its output goes away.)
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode("ascii", "replace").decode())
        except (OSError, ValueError):  # the reader is gone, or the stream is closed
            return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_view(stream: TextIO, *, verbose: bool = False) -> View:
    """The live panel if ``stream`` is a terminal that can redraw, plain lines if not.

    ``verbose``: with the reason and the evidence of each line.
    """
    console = Console(file=cast(TextIO, Forgiving(stream)))
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(
            console, is_behind=lambda: getattr(stream, "is_behind", False), verbose=verbose
        )
    return PlainView(stream, verbose=verbose)


def lines_of(
    event: Event, progress: RunProgress, *, verbose: bool, width: int = WIDTH
) -> list[str]:
    """What is shown of an event; none for steps and all that only changes the panel."""
    short = line(event, progress.standing(event))
    shown = [] if short is None else folded(short, width=width)
    more = details(event) if verbose else ()
    return [*shown, *(row for text in more for row in folded(text, INDENT, width))]


class PlainView:
    """For logs and pipes: a line at the start, at the end, for each mishap and change at once,
    and at most one a second for the steps."""

    def __init__(
        self, stream: TextIO, *, now: Clock = time.monotonic, verbose: bool = False
    ) -> None:
        self._stream = Forgiving(stream)
        self._now, self._verbose = now, verbose
        self._progress = RunProgress()
        self._next_line_s = now()
        self._untold = False  # the last step has had no line yet

    def handle(self, event: Event) -> None:
        self._progress.handle(event)
        match event:
            case RunStarted():
                self._tell_start(event)
            case StepFinished():
                self._untold = True
                if event.skipped or self._now() >= self._next_line_s:
                    self._tell_step()
            case RunFailed() | RunFinished():
                self.close()
                self._say(*folded(" ".join(_ending(self._progress).split())))
                if self._progress.unsaved is not None:
                    self._say(*folded(unsaved(self._progress.unsaved)))
            case _:
                self._tell_change(event)

    def close(self) -> None:
        if self._untold:
            self._tell_step()

    def _tell_start(self, run: RunStarted) -> None:
        self._say(layout(run), NAMES)
        self._say(*lines_of(run, self._progress, verbose=self._verbose))
        if run.first_step:
            self._say(f"resumed after step {run.first_step}")
        if run.address:
            self._say(how_to_join(run))  # a command: it stays on one line

    def _tell_change(self, event: Event) -> None:
        if isinstance(event, WentBack):
            self._untold = False  # the step no longer counts
        self._say(*lines_of(event, self._progress, verbose=self._verbose))

    def _tell_step(self) -> None:
        self._untold = False
        self._next_line_s = self._now() + _LINE_S
        self._say(_step_line(self._progress))

    def _say(self, *lines: str) -> None:
        for text in lines:
            self._stream.write(text + "\n")
        self._stream.flush()


class LiveView:
    """One panel that redraws itself, at most four times a second; above it what has happened."""

    def __init__(
        self,
        console: Console,
        *,
        now: Clock = time.monotonic,
        is_behind: Callable[[], bool] = lambda: False,
        verbose: bool = False,
    ) -> None:
        """``is_behind``: what was drawn last is not shown yet, so nothing more is drawn."""
        self._now, self._is_behind, self._verbose = now, is_behind, verbose
        self._progress = RunProgress()
        self._glyphs = " .:-=+*#" if console.options.ascii_only else "▁▂▃▄▅▆▇█"
        # No redraw by a thread of its own: it would take time from the training at any moment.
        self._live = Live(console=console, auto_refresh=False)
        self._next_draw_s = now()
        self._open = True

    def handle(self, event: Event) -> None:
        self._progress.handle(event)
        width = min(WIDTH, self._live.console.width)
        for text in lines_of(event, self._progress, verbose=self._verbose, width=width):
            self._live.console.print(Text(text))
        if self._open and self._now() >= self._next_draw_s and not self._is_behind():
            self._next_draw_s = self._now() + _REDRAW_S
            self._draw()

    def close(self) -> None:
        if self._open:
            self._draw()
            self._live.stop()
        self._open = False

    def _draw(self) -> None:
        self._live.start()
        self._live.update(draw(self._progress, self._glyphs), refresh=True)


def draw(progress: RunProgress, glyphs: str) -> RenderableType:
    """The panel: how far, how well, how fast, who takes part, and what each worker does."""
    lines: list[RenderableType] = [_bar(progress), _figures(progress, glyphs)]
    if progress.workers:
        lines += [*_members(progress), Text(), _grid(progress)]
    if progress.unsaved is not None:
        lines += [Text(), Text(unsaved(progress.unsaved), style="red")]
    ended = progress.failure is not None or progress.finished
    if progress.interrupted and not ended:
        lines += [Text(), Text(INTERRUPTED, style="yellow")]
    if ended:
        lines += [Text(), Text(_ending(progress), style="red" if progress.failure else "green")]
    title = layout(progress.run) if progress.run else "starting"
    style = "red" if progress.failure is not None else "blue"
    return Panel(Group(*lines), title=escape(title), title_align="left", border_style=style)


def how_to_join(run: RunStarted) -> str:
    return f"replacements join with: holdfast worker --join {run.address} {run.join_with}".rstrip()


def _bar(progress: RunProgress) -> Table:
    total = progress.run.steps if progress.run else 0
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    eta = "" if progress.finished else f"ETA {_clock(progress.eta_s)}"
    bar = ProgressBar(total=max(total, 1), completed=progress.num_done)
    row.add_row(f"step {progress.num_done}/{total}", bar, eta)
    return row


def _figures(progress: RunProgress, glyphs: str) -> Text:
    if progress.last is None:
        return Text("no step finished yet", style="dim")
    text = Text(f"loss {progress.last.loss:.4f} ", style="bold")
    text.append(progress.curve.draw(glyphs), style="cyan")
    text.append(f"  {_speed(progress)}{_mishaps(progress)}", style="not bold")
    return text


def _members(progress: RunProgress) -> Iterator[Text]:
    num_all = len(progress.workers)
    missing = progress.num_members < num_all
    text = Text(f"{progress.num_members} of {count(num_all, 'worker')}")
    text.stylize("yellow" if missing else "dim")
    ended = progress.finished or progress.failure is not None
    if progress.run and progress.run.address and not ended:
        text.append(f"; {how_to_join(progress.run)}", style="dim")
    yield text


def _grid(progress: RunProgress) -> Table:
    """Pipelines down, stages across."""
    pipelines = sorted({worker.pipeline for worker in progress.workers})
    stages = sorted({worker.stage for worker in progress.workers})
    grid = Table.grid(padding=(0, 2))
    grid.add_row("", *(Text(f"stage {stage}", style="dim") for stage in stages))
    states = {tuple(worker): state for worker, state in progress.workers.items()}
    for pipeline in pipelines[:_MAX_ROWS]:
        cells = (_cell(states.get((pipeline, stage))) for stage in stages)
        grid.add_row(Text(f"pipeline {pipeline}", style="dim"), *cells)
    if len(pipelines) > _MAX_ROWS:
        grid.add_row(Text(f"and {len(pipelines) - _MAX_ROWS} more", style="dim"))
    return grid


def _cell(state: WorkerState | None) -> Text:
    if state is None:
        return Text("-", style="dim")
    step = "" if state.step is None else f" {state.step + 1}"
    stage = "" if state.stage is None else f" at stage {state.stage}"
    return Text(state.word + step + stage, style=_STYLES[state.word])


def _step_line(progress: RunProgress) -> str:
    last, run = progress.last, progress.run
    assert last is not None  # a step has finished
    total = f"/{run.steps}" if run else ""
    skipped = "  NaN or Inf: skipped" if last.skipped else ""
    if last.empty:
        skipped = "  no micro-batch has any weight: skipped"
    elif last.skipped and last.loss_scale > 1:
        skipped += f", loss scale {last.loss_scale:,.0f} halved"
    eta = f"  ETA {_clock(progress.eta_s)}"
    return f"step {last.step + 1}{total}  loss {last.loss:.4f}  {_speed(progress)}{eta}{skipped}"


def _speed(progress: RunProgress) -> str:
    rate = f"{progress.tokens_per_s:,.0f} {progress.counted}/s"
    return f"{rate}  {progress.step_s or 0:.3f} s/step"


def _mishaps(progress: RunProgress) -> str:
    """Each after a comma; empty: there were none."""
    skipped = f", {progress.num_skipped} skipped (NaN or Inf)" if progress.num_skipped else ""
    skipped += f", {progress.num_empty} skipped (no weight)" if progress.num_empty else ""
    if not progress.num_lost:
        return skipped
    lost = f", {count(progress.num_lost, 'worker')} lost"
    replaced = f", {progress.num_replaced} replaced" if progress.num_replaced else ""
    num_again = progress.num_thrown_away
    again = f", {count(num_again, 'step')} trained again" if num_again else ""
    return f"{skipped}{lost}{replaced}{again}"


def _ending(progress: RunProgress) -> str:
    if progress.failure is not None:
        how = "stopped" if progress.interrupted else "failed"
        return f"{how} after {count(progress.num_done, 'step')}: {progress.failure}"
    loss = f", loss {progress.last.loss:.4f}" if progress.last else ""
    return f"finished {count(progress.num_done, 'step')}{loss}{_mishaps(progress)}"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
