"""What a view of a running job shows, folded from its events. Draws nothing, reads no clock."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId, parse_worker
from holdfast.observability.events import (
    Event,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerReady,
    WorkerStep,
)

_RECENT_STEPS = 20  # that speed and ETA are taken from


@dataclass
class WorkerState:
    word: str = "starting"  # or "ready", "running", "went back", "done"
    step: int | None = None  # the last it has finished


class Curve:
    """The losses of a whole run in a bounded number of points: full, it halves its resolution."""

    def __init__(self, num_points: int = 32) -> None:
        self._num_points = num_points
        self._stride = 1  # steps in a point
        self._points: list[float] = []
        self._waiting: list[float] = []

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self._waiting.append(value)
        if len(self._waiting) == self._stride:
            self._points.append(sum(self._waiting) / self._stride)
            self._waiting = []
        if len(self._points) == 2 * self._num_points:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(left + right) / 2 for left, right in pairs]
            self._stride *= 2

    def draw(self, glyphs: str) -> str:
        """One glyph a point, from the first of ``glyphs`` for the lowest to the last."""
        points = _thinned(self._points, self._num_points)
        if len(points) < 2:
            return ""
        low, high = min(points), max(points)
        span = (high - low) or 1.0
        return "".join(glyphs[round((p - low) / span * (len(glyphs) - 1))] for p in points)


def _thinned(points: Sequence[float], num_points: int) -> Sequence[float]:
    """An even choice of at most ``num_points``, the last included."""
    if len(points) <= num_points:
        return points
    return [points[(i + 1) * len(points) // num_points - 1] for i in range(num_points)]


@dataclass
class Progress:
    run: RunStarted | None = None
    last: StepFinished | None = None
    failure: str | None = None
    finished: bool = False
    num_skipped: int = 0
    num_taken_back: int = 0
    workers: dict[WorkerId, WorkerState] = field(default_factory=dict)
    curve: Curve = field(default_factory=Curve)
    _recent: deque[StepFinished] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    def handle(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepFinished():
                self._finish_step(event)
            case WorkerReady():
                self._worker(event.worker).word = "ready"
            case WorkerStep():
                self._move(self._worker(event.worker), event.step)
            case StepTakenBack():
                self.num_taken_back += 1
                self._worker(event.worker).word = "went back"
            case RunFailed():
                self.failure = event.reason
            case RunFinished():
                self.finished = True
                for state in self.workers.values():
                    state.word = "done"

    def _start(self, run: RunStarted) -> None:
        self.run = run
        for pipeline in range(run.pipelines):
            for stage in range(run.stages):
                self.workers.setdefault(WorkerId(pipeline, stage), WorkerState())

    def _finish_step(self, event: StepFinished) -> None:
        self.last = event
        self.num_skipped += event.skipped
        self._recent.append(event)
        self.curve.add(event.loss)
        for state in self.workers.values():
            self._move(state, event.step)

    def _worker(self, name: str) -> WorkerState:
        return self.workers.setdefault(parse_worker(name), WorkerState())

    def _move(self, state: WorkerState, step: int) -> None:
        state.word = "running"
        state.step = step if state.step is None else max(state.step, step)

    @property
    def num_done(self) -> int:
        """Steps finished, those before a resume included."""
        if self.last is not None:
            return self.last.step + 1
        return self.run.first_step if self.run else 0

    @property
    def step_s(self) -> float | None:
        return sum(e.took_s for e in self._recent) / len(self._recent) if self._recent else None

    @property
    def tokens_per_s(self) -> float:
        took_s = sum(event.took_s for event in self._recent)
        return sum(event.tokens for event in self._recent) / took_s if took_s else 0.0

    @property
    def eta_s(self) -> float | None:
        if self.run is None or self.step_s is None:
            return None
        return max(0, self.run.steps - self.num_done) * self.step_s
