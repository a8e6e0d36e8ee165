"""A run as its user sees it, from the first line to the last, and the exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from holdfast.api.live_run import LiveRun
from holdfast.cli.terminal.screen import Screen
from holdfast.cli.terminal.signals import passed_to
from holdfast.cli.terminal.view import View, make_view
from holdfast.errors import HoldfastError
from holdfast.faults.fault import Fault
from holdfast.observability.events import Event, FaultFired, RunStarted
from holdfast.observability.summary import Summary
from holdfast.observability.text import folded

_SHOW_LIMIT_S = 2.0  # at the end, for a reader that is slow


def shown_to_the_end(run: LiveRun, first: str, given_dir: str | None, *, verbose: bool) -> int:
    """``first``: what is said before anything else. The exit code."""
    screen, armed = Screen(sys.stdout), run.faults
    screen.write(first)
    view = _Fired(make_view(cast(TextIO, screen), verbose=verbose))
    try:
        # It ends in good order instead of being torn down half-way.
        with passed_to(run.interrupt), run:
            run.begin()
            for event in run:
                view.handle(event)
            result = run.result()
        view.close()
        shown = _shown(run.run_dir, given_dir)
        screen.write(view.missed(armed) + _closing_lines(result.summary, shown))
    except HoldfastError:
        view.close()
        screen.write(view.missed(armed))
        raise
    finally:
        view.close()
        screen.close(_SHOW_LIMIT_S)
    return 0


class _Fired:
    """A view that also remembers which faults have fired, however the run ends."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._fired: set[str] = set()
        self._has_begun = False

    def handle(self, event: Event) -> None:
        self._has_begun = self._has_begun or isinstance(event, RunStarted)
        if isinstance(event, FaultFired):
            self._fired.add(event.fault)
        self._view.handle(event)

    def close(self) -> None:
        self._view.close()

    def missed(self, faults: Sequence[Fault]) -> str:
        """The line of those that did not; empty if there are none, or nothing was trained."""
        missed = [str(fault) for fault in faults if str(fault) not in self._fired]
        if not missed or not self._has_begun:
            return ""
        lines = folded(f"not injected, as no worker came to that point: {'; '.join(missed)}")
        return "\n".join(lines) + "\n"


def _shown(run_dir: Path, given: str | None) -> Path:
    """As it was given, or short."""
    here = Path.cwd()
    if given is not None:
        return Path(given)
    return run_dir.relative_to(here) if run_dir.is_relative_to(here) else run_dir


def _closing_lines(summary: Summary, run_dir: Path) -> str:
    per_s = summary.tokens_per_s
    rate = f"{per_s:,.0f} {summary.counted}/s" if per_s else "too short to time"
    rate += " (emulated)" if summary.config["device"]["emulate"] else ""
    return (
        f"speed: {rate}\n"
        f"parameters sha256 {summary.parameters_sha256}\n"
        f"results: {run_dir}\n"
        f"see the pipeline with: holdfast trace {run_dir}\n"
    )
