"""What a view of a running job shows, folded from its events. Draws nothing, reads no clock."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId, parse_worker
from holdfast.observability.events import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
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
    WorkerReplaced,
    WorkerStep,
)
from holdfast.observability.lines import UNKNOWN, Standing
from holdfast.observability.throughput import counted, tokens_per_s

_RECENT_STEPS = 20  # that speed and ETA are taken from
_AWAY = ("lost", "joining")  # words of a worker that takes no part any more, or not yet again
_OUTSIDE = ("starting", *_AWAY)


@dataclass
class WorkerState:
    word: str = "starting"  # or "ready", "running", "rolled back", "lost", "joining", ...
    step: int | None = None  # the last it has finished, or in which it was lost, joined or moved
    stage: int | None = None  # that it holds, if it is not the one it is named after


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
class RunProgress:
    run: RunStarted | None = None
    last: StepFinished | None = None
    failure: str | None = None
    finished: bool = False
    interrupted: bool = False
    recovery: Recovered | None = None  # the last one
    unsaved: CheckpointFailed | None = None  # until a checkpoint is whole again
    num_done: int = 0  # steps finished and not gone back on, those before a resume included
    num_skipped: int = 0
    num_empty: int = 0  # skipped, too: no micro-batch had any weight
    num_taken_back: int = 0
    num_lost: int = 0  # workers, each time
    num_replaced: int = 0  # of them started again, and here
    num_thrown_away: int = 0  # finished steps that were gone back on
    workers: dict[WorkerId, WorkerState] = field(default_factory=dict)
    curve: Curve = field(default_factory=Curve)
    _recent: deque[StepFinished] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    _replaced: set[str] = field(default_factory=set)  # started again, and on the way
    _num_seen: int = 0  # steps that have finished at least once

    def handle(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepFinished():
                self._finish_step(event)
            case Recovered():
                self.recovery = event
            case WentBack():
                self._go_back(event)
            case Interrupted():
                self.interrupted = True
            case CheckpointFailed() | CheckpointSaved():
                self.unsaved = event if isinstance(event, CheckpointFailed) else None
            case RunFailed():
                self.failure = event.reason
            case RunFinished():
                self.finished = True
                for state in self._taking_part():
                    state.word = "done"
            case _:
                self._handle_worker(event)

    def _handle_worker(self, event: Event) -> None:
        match event:
            case WorkerReady():
                self._get_ready(self._worker(event.worker))
            case WorkerStep():
                self._advance(self._worker(event.worker), event.step)
            case StepTakenBack():
                self.num_taken_back += 1
                self._report(self._worker(event.worker), "rolled back")
            case WorkerLost():
                self.num_lost += 1
                self._place(event.worker, "lost", event.step)
            case WorkerReplaced():
                self._replaced.add(event.worker)
            case WorkerJoined():
                self.num_replaced += event.worker in self._replaced
                self._replaced.discard(event.worker)
                self._place(event.worker, "joined", event.step, event.stage)
            case WorkerMoved():
                self._place(event.worker, "moved", event.step, event.to_stage)
            case JoinFailed() if event.worker:
                self._fail_to_join(self._worker(event.worker))

    def _start(self, run: RunStarted) -> None:
        self.run = run
        self.num_done = run.first_step
        for pipeline in range(run.pipelines):
            for stage in range(run.stages):
                self.workers.setdefault(WorkerId(pipeline, stage), WorkerState())

    def _finish_step(self, event: StepFinished) -> None:
        self.last = event
        self.num_done = event.step + 1
        self._recent.append(event)
        for state in self._taking_part():
            self._advance(state, event.step)
        if event.step >= self._num_seen:  # not one that runs again after going back
            self._num_seen = event.step + 1
            self.num_skipped += event.skipped and not event.empty
            self.num_empty += event.empty
            self.curve.add(event.loss)

    def _go_back(self, event: WentBack) -> None:
        self.num_thrown_away += event.thrown_away
        self.num_done = event.to_step
        for state in self._taking_part():
            state.word = "rolled back"
            state.step = event.to_step - 1 if event.to_step else None

    def _worker(self, name: str) -> WorkerState:
        return self.workers.setdefault(parse_worker(name), WorkerState())

    def _taking_part(self) -> list[WorkerState]:
        return [state for state in self.workers.values() if state.word not in _OUTSIDE]

    def _get_ready(self, state: WorkerState) -> None:
        late = self.last is not None or state.word in _AWAY
        state.word = "joining" if late else "ready"

    def _advance(self, state: WorkerState, step: int) -> None:
        self._report(state, "running")
        if state.word == "running":
            state.step = step if state.step is None else max(state.step, step)

    def _report(self, state: WorkerState, word: str) -> None:
        if state.word not in _AWAY:  # else sent before it was lost
            state.word = word

    def _place(self, name: str, word: str, step: int, stage: int | None = None) -> None:
        """``stage``: that it holds from now on; None: as before."""
        worker, state = parse_worker(name), self._worker(name)
        state.word, state.step = word, step
        if stage is not None:
            state.stage = None if stage == worker.stage else stage

    def _fail_to_join(self, state: WorkerState) -> None:
        if state.word == "joining":
            state.word = "lost"

    def standing(self, event: Event) -> Standing:
        """For the line of an event that was handled."""
        if self.run is None:
            return UNKNOWN
        if not isinstance(event, WorkerLost):
            return Standing(len(self.workers))
        lost = parse_worker(event.worker)
        stage = _stage_of(lost, self.workers[lost])
        others = [
            str(worker)
            for worker, state in sorted(self.workers.items())
            if state.word not in _OUTSIDE and _stage_of(worker, state) == stage
        ]
        return Standing(len(self.workers), stage, tuple(others))

    @property
    def num_members(self) -> int:
        """All that take part; one that is changing its stage only counts again afterwards."""
        num_here = len(self._taking_part())
        return num_here if self.recovery is None else min(num_here, self.recovery.members)

    @property
    def step_s(self) -> float | None:
        return sum(e.took_s for e in self._recent) / len(self._recent) if self._recent else None

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_s(self._recent) or 0.0

    @property
    def counted(self) -> str:
        return counted(self.run, self._recent)

    @property
    def eta_s(self) -> float | None:
        if self.run is None or self.step_s is None:
            return None
        return max(0, self.run.steps - self.num_done) * self.step_s


def _stage_of(worker: WorkerId, state: WorkerState) -> int:
    return worker.stage if state.stage is None else state.stage
