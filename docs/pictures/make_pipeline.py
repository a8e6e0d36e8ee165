"""Draws the steps of a recorded run around the first death in it, as SVG.

    holdfast train examples/tiny_gpt.py --pipelines 2 --stages 2 --microbatches 8 --steps 30 \\
        --set workers.replace=0 --fault "kill 1.0 @ 24.B2" --run-dir runs/picture
    python docs/pictures/make_pipeline.py runs/picture docs/pictures/pipeline.svg

A row is a worker, a box an operation, time goes to the right; all from ``events.jsonl``. What the
dead worker had done of its last step was never reported, so it is drawn as one pale box.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from holdfast.observability.events import (
    Event,
    FaultFired,
    Recovered,
    RunStarted,
    WorkerLost,
    WorkerStep,
)
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.schedule.operation import Kind, Op, parse_op

COLOURS = {
    Kind.F: ("forward", "#7fb2e5"),
    Kind.B: ("input gradient", "#f2b56b"),
    Kind.W: ("weight gradient", "#8fcf9f"),
    Kind.BW: ("both gradients", "#d9a0c8"),
    Kind.R: ("reduce (and wait for it), optimizer step", "#b0b0b0"),
}
DEATH = "#c0392b"
WIDTH, LEFT, TOP, ROW, BOX = 1200, 64, 58, 34, 24
STEPS_BEFORE, STEPS_AFTER = 1, 1


@dataclass(frozen=True)
class Box:
    """One operation as it was run."""

    worker: str
    step: int
    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Death:
    worker: str
    step: int
    at_s: float
    resumed_s: float  # when the last survivor was at work again


def death_in(events: Sequence[Event]) -> Death:
    """The first one that the others recovered from."""
    lost = next((event for event in events if isinstance(event, WorkerLost)), None)
    if lost is None:
        sys.exit("nobody died in this run: there is nothing to show")
    fired = [e for e in events if isinstance(e, FaultFired) and e.worker == lost.worker]
    killed_s = [e.at_s for e in fired if e.fault.startswith("kill ")]
    recovered = next(e for e in events if isinstance(e, Recovered) and lost.worker in e.workers)
    at_s = killed_s[0] if killed_s else lost.at_s
    return Death(lost.worker, lost.step, at_s, recovered.resumed_s)


def boxes_of(events: Sequence[Event]) -> list[Box]:
    return [
        Box(event.worker, event.step, parse_op(text), start_s, end_s)
        for event in events
        if isinstance(event, WorkerStep)
        for text, start_s, end_s in event.ops
    ]


class Picture:
    def __init__(self, events: Sequence[Event]) -> None:
        self._death = death_in(events)
        first, last = self._death.step - STEPS_BEFORE, self._death.step + STEPS_AFTER
        self._boxes = [box for box in boxes_of(events) if first <= box.step <= last]
        self._workers = sorted({box.worker for box in self._boxes} | {self._death.worker})
        self._usual = self._usual_workers(events)
        self._start_s = min(box.start_s for box in self._boxes)
        self._end_s = max(box.end_s for box in self._boxes)
        self._layout = next(event for event in events if isinstance(event, RunStarted))

    def _usual_workers(self, events: Sequence[Event]) -> dict[tuple[int, int], str]:
        """(stage, micro-batch) -> who ran it in the step before the death."""
        before = [box for box in boxes_of(events) if box.step == self._death.step - 1]
        return {(b.op.stage, b.op.microbatch): b.worker for b in before if b.op.kind is Kind.F}

    def svg(self) -> str:
        height = TOP + ROW * len(self._workers) + 30
        body = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(self._caption())}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *self._legend(),
            *self._step_lines(height),
        ]
        for number, worker in enumerate(self._workers):
            body += self._row(worker, TOP + number * ROW)
        return "\n".join([*body, *self._mark(height), "</svg>\n"])

    def _caption(self) -> str:
        death, run = self._death, self._layout
        return (
            f"{run.pipelines} pipelines x {run.stages} stages, {run.microbatches} micro-batches: "
            f"worker {death.worker} is killed in step {death.step + 1}; the others are at work "
            f"again {1000 * (death.resumed_s - death.at_s):.0f} ms later"
        )

    def _legend(self) -> Iterator[str]:
        yield f'<text x="8" y="18" font-weight="bold">{escape(self._caption())}</text>'
        x = LEFT
        seen = {box.op.kind for box in self._boxes}
        for meaning, colour in (COLOURS[kind] for kind in COLOURS if kind in seen):
            yield f'<rect x="{x}" y="28" width="12" height="12" fill="{colour}"/>'
            yield f'<text x="{x + 17}" y="38">{meaning}</text>'
            x += 36 + 7 * len(meaning)
        yield (
            f'<rect x="{x}" y="28" width="12" height="12" fill="none" stroke="{DEATH}" '
            f'stroke-width="2"/><text x="{x + 17}" y="38">work of the dead worker</text>'
        )

    def _x(self, at_s: float) -> float:
        scale = (WIDTH - LEFT - 10) / (self._end_s - self._start_s)
        return LEFT + (at_s - self._start_s) * scale

    def _row(self, worker: str, y: int) -> Iterator[str]:
        yield f'<text x="8" y="{y + 16}" font-weight="bold">{worker}</text>'
        yield f'<line x1="{LEFT}" y1="{y + 28}" x2="{WIDTH - 10}" y2="{y + 28}" stroke="#eee"/>'
        own = [box for box in self._boxes if box.worker == worker]
        yield from (self._box(box, y) for box in own)
        if worker == self._death.worker:
            done_s = max((b.end_s for b in own if b.end_s < self._death.at_s), default=None)
            if done_s is not None:
                x, end = self._x(done_s), self._x(self._death.at_s)
                yield (
                    f'<rect x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{BOX}" '
                    f'fill="{DEATH}" fill-opacity="0.12"><title>begun and lost</title></rect>'
                )

    def _box(self, box: Box, y: int) -> str:
        x, end = self._x(box.start_s), self._x(box.end_s)
        width = max(end - x, 0.8)
        name = f"{box.op.kind.value}{box.op.microbatch}" if box.op.kind is not Kind.R else "R"
        stroke, weight = (DEATH, 1.8) if self._was_taken_over(box) else ("white", 0.6)
        label = (
            f'<text x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle" '
            f'font-size="10">{name}</text>'
            if width > 7 * len(name)
            else ""
        )
        pale = ' fill-opacity="0.55"' if (box.step - self._death.step) % 2 else ""
        return (
            f"<g><title>step {box.step + 1}, worker {box.worker}, {box.op}: "
            f"{1000 * (box.end_s - box.start_s):.1f} ms</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" '
            f'fill="{COLOURS[box.op.kind][1]}"{pale} stroke="{stroke}" stroke-width="{weight}"/>'
            f"{label}</g>"
        )

    def _was_taken_over(self, box: Box) -> bool:
        usual = self._usual.get((box.op.stage, box.op.microbatch))
        return (
            box.step >= self._death.step
            and box.op.kind is not Kind.R
            and usual == self._death.worker != box.worker
        )

    def _step_lines(self, height: int) -> Iterator[str]:
        """Where each step of the first stage begins."""
        for step in sorted({box.step for box in self._boxes}):
            x = self._x(min(box.start_s for box in self._boxes if box.step == step))
            yield (
                f'<text x="{x:.1f}" y="{height - 10}" fill="#606060">step {step + 1}</text>'
                f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}" '
                'stroke="#bbb" stroke-dasharray="3 3"/>'
            )

    def _mark(self, height: int) -> Iterator[str]:
        x = self._x(self._death.at_s)
        y = TOP + ROW * self._workers.index(self._death.worker)
        cross = f"M{x - 7:.1f} {y + 5} l14 14 m0 -14 l-14 14"
        yield f'<path d="{cross}" stroke="{DEATH}" stroke-width="3" fill="none"/>'
        yield (
            f'<text x="{x + 12:.1f}" y="{y + 16}" fill="{DEATH}" font-weight="bold">SIGKILL</text>'
        )


def main(words: Sequence[str]) -> int:
    if len(words) != 2:
        sys.exit("usage: make_pipeline.py RUN_DIR FILE.svg")
    run_dir, target = map(Path, words)
    target.write_text(Picture(read_events(run_dir / EVENTS_FILE)).svg())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
