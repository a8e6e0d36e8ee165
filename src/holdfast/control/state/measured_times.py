"""How long steps, stops and copies took in this run, and the limits that follow from it."""

from collections.abc import Sequence

from holdfast.config import RunConfig
from holdfast.control.state.timeouts import Timeouts


class MeasuredTimes:
    def __init__(self, config: RunConfig) -> None:
        self._limits_s = (config.workers.heartbeat_timeout_s, config.workers.start_limit_s)
        self._steps_s: list[float] = []
        self._num_workers = config.parallel.pipelines * config.parallel.stages
        self._stop_s = 0.1
        self._copy_s = 1.0
        self._timeouts = self._follow()

    def _follow(self) -> Timeouts:
        return Timeouts.of(*self._limits_s, self._steps_s, self._num_workers)

    @property
    def steps_s(self) -> Sequence[float]:
        return self._steps_s

    @property
    def stop_s(self) -> float:
        """How long the last change held everyone up."""
        return self._stop_s

    @property
    def copy_s(self) -> float:
        """How long the last joiner took for its copy."""
        return self._copy_s

    @property
    def timeouts(self) -> Timeouts:
        """Asked for many times a second; steps are few."""
        return self._timeouts

    def note_step(self, took_s: float) -> None:
        self._steps_s.append(took_s)
        self._timeouts = self._follow()

    def note_stop(self, took_s: float) -> None:
        self._stop_s = took_s

    def note_copy(self, took_s: float) -> None:
        self._copy_s = took_s
