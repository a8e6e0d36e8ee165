"""torch's profiler for some steps of a worker: a trace for ``chrome://tracing`` or Perfetto.

It looks on: no number of the training depends on it. A trace that cannot be had is told of, and
training goes on.
"""

from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

PROFILES = "profile"  # folder in the run directory
_NO_STEPS = range(0)


class Profiling:
    """Of one worker. ``sees_run_dir``: asked when it begins."""

    def __init__(
        self,
        worker: str,
        steps: range | None,
        run_dir: Path,
        warn: Callable[[str], None],
        sees_run_dir: Callable[[], bool] = lambda: True,
    ) -> None:
        self._worker, self._steps = worker, steps or _NO_STEPS
        self._folder, self._warn = run_dir / PROFILES, warn
        self._sees_run_dir = sees_run_dir
        self._running: profile | None = None

    def begin_step(self, step: int) -> None:
        """Before anything of it is run."""
        if self._running is None and step in self._steps:
            self._start()
        elif self._running is not None and step not in self._steps:
            self.end()

    def end(self) -> None:
        """Whoever ends in the middle keeps what there is."""
        running, self._running, self._steps = self._running, None, _NO_STEPS
        if running is None:
            return
        running.stop()
        try:
            self._folder.mkdir(exist_ok=True)
            running.export_chrome_trace(str(self._folder / f"worker-{self._worker}.json"))
        except (OSError, RuntimeError) as why:
            self._warn(f"observe.profile: no trace of worker {self._worker}: {why}")

    def _start(self) -> None:
        if not self._sees_run_dir():
            self._steps = _NO_STEPS
            self._warn(
                f"observe.profile: no trace of worker {self._worker}: it does not see the run "
                "directory"
            )
            return
        self._running = profile(activities=[ProfilerActivity.CPU])
        self._running.start()
