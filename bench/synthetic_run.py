"""A run directory of so many steps by so many workers, made in no time: for readers of long runs.

    .venv/bin/python bench/synthetic_run.py RUN_DIR [--steps 5000] [--workers 64] [--running]

The numbers are made up: a loss that falls, a worker that is slow for a while, one that is lost and
joins again, checkpoints. The form is that of a real run, index included.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.observability.events import (
    CheckpointSaved,
    Diagnosed,
    Event,
    Recovered,
    RunFinished,
    RunStarted,
    SlownessOver,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    encode_event,
)
from holdfast.observability.events.kinds import SCHEMA
from holdfast.observability.log.files import EVENTS_FILE, NUM_WHOLE, older_file
from holdfast.observability.log.index import IndexFiles
from holdfast.observability.log.rotation import shrink_all
from holdfast.observability.log.scan import IndexScan

STEP_S = 0.25
UNIX_S = 1_750_000_000.0
BEGAN_S = 1000.0
MICROBATCHES = 4  # of a pipeline
CHECKPOINT_EVERY = 200  # steps
LOST_EVERY = 5000  # steps, or once in the middle of a shorter run


def make_run(
    run_dir: Path,
    num_steps: int,
    num_workers: int,
    *,
    stages: int = 4,
    operations: bool = True,
    finished: bool = True,
    limit_bytes: int = 200_000_000,
    indexed: bool = True,
) -> Path:
    """As a run leaves it whose ``observe.events_limit`` is ``limit_bytes``.

    Times of operations that would be dropped again are not even written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    newest = run_dir / EVENTS_FILE
    names = _names(num_workers, stages)
    most_bytes = limit_bytes if operations else 0
    lines = _lines(num_steps, names, stages, most_bytes, finished)
    _write(newest, lines, limit_bytes // (NUM_WHOLE + 1))
    shrink_all(newest)
    if indexed:
        make_index(newest)
    return run_dir


def make_index(newest: Path) -> None:
    files = IndexFiles(newest)
    assert files.lock()
    scan = IndexScan(newest, files.begin().last)
    scan.run()
    files.append(*scan.take())
    scan.close()
    files.close()


def _names(num_workers: int, stages: int) -> list[str]:
    return [f"{number // stages}.{number % stages}" for number in range(num_workers)]


def _write(newest: Path, lines: Iterator[str], most_bytes: int) -> None:
    number, size, file = 1, 0, newest.open("w", buffering=1 << 20)
    for text in lines:
        if size > most_bytes:
            file.close()
            newest.rename(older_file(newest.parent, number))
            number, size, file = number + 1, 0, newest.open("w", buffering=1 << 20)
        file.write(text)
        size += len(text)
    file.close()


def _lines(
    num_steps: int, names: list[str], stages: int, most_bytes: int, finished: bool
) -> Iterator[str]:
    for event in _beginning(num_steps, names, stages):
        yield encode_event(event) + "\n"
    shapes = [_operations(name) for name in names]
    step_bytes = sum(len(shape(num_steps, BEGAN_S)) for shape in shapes)
    first_kept = num_steps - most_bytes // step_bytes
    for step in range(num_steps):
        at_s = BEGAN_S + step * STEP_S
        if step >= first_kept:  # as text: a million events are no objects
            yield from (shape(step, at_s) for shape in shapes)
        yield _finished(step, at_s + STEP_S)
        for event in _rare(step, num_steps, names, at_s + STEP_S):
            yield encode_event(event) + "\n"
    if finished:
        yield encode_event(_end(num_steps, names)) + "\n"


def _end(num_steps: int, names: list[str]) -> RunFinished:
    return RunFinished(
        at_s=BEGAN_S + num_steps * STEP_S + 1.0,
        parameters_sha256="5a" * 32,
        peak_memory_bytes=dict.fromkeys(names, 1 << 30),
    )


def _beginning(num_steps: int, names: list[str], stages: int) -> Iterator[Event]:
    for number, name in enumerate(names):
        yield WorkerReady(
            at_s=BEGAN_S - 1.0,
            worker=name,
            pid=1000 + number,
            versions={"python": "3.11", "torch": "2.6"},
            machine=f"node-{number // 8}",
        )
    pipelines = max(1, len(names) // stages)
    yield RunStarted(
        at_s=BEGAN_S,
        pipelines=pipelines,
        stages=stages,
        microbatches=MICROBATCHES * pipelines,
        steps=num_steps,
        schedule="zero-bubble",
        reason="equal measured cost",
        cut=tuple(range(2, 2 * stages, 2)),
        samples=16 * MICROBATCHES * pipelines,
        unix_s=UNIX_S,
        schema=SCHEMA,
    )


def _operations(name: str) -> Callable[[int, float], str]:
    """The line of one worker, as text with two holes."""
    stage = int(name.split(".")[1])
    slot_s = STEP_S / (3 * MICROBATCHES + 2)
    kinds = [(f"{stage}{kind}{number}", kind) for number in range(MICROBATCHES) for kind in "FBW"]
    offsets = [(text, (stage + place) * slot_s) for place, (text, _) in enumerate(kinds)]
    begins = [(f'["{text}", ', begin_s, begin_s + 0.9 * slot_s) for text, begin_s in offsets]
    cpu = json.dumps([round(0.8 * slot_s, 6)] * len(kinds))
    sizes = json.dumps([16384] * len(kinds))
    source = f"{name.split('.')[0]}.{stage - 1}" if stage else ""
    transfers = json.dumps([[source, "pipeline", MICROBATCHES, 65536, 0.0021]] if source else [])

    def line(step: int, at_s: float) -> str:
        ops = ", ".join(f"{head}{at_s + b:.6f}, {at_s + e:.6f}]" for head, b, e in begins)
        return (
            f'{{"event": "WorkerStep", "at_s": {at_s + STEP_S!r}, "worker": "{name}", '
            f'"step": {step}, "ops": [{ops}], "cpu_s": {cpu}, "sizes": {sizes}, '
            f'"transfers": {transfers}}}\n'
        )

    return line


def _finished(step: int, at_s: float) -> str:
    return (
        f'{{"event": "StepFinished", "at_s": {at_s!r}, "step": {step}, '
        f'"loss": {1.0 + 3.0 * math.exp(-step / 2000) + 0.05 * math.sin(step)!r}, '
        f'"gradient_norm": {1.0 + 0.5 * math.cos(step)!r}, "tokens": 4096, '
        f'"took_s": {STEP_S * (1 + 0.02 * math.sin(7 * step))!r}, "clipped": false, '
        f'"skipped": false, "empty": false, "loss_scale": 1.0, "lr": 0.0003}}\n'
    )


def _rare(step: int, num_steps: int, names: list[str], at_s: float) -> Iterator[Event]:
    number = step + 1
    if number % CHECKPOINT_EVERY == 0:
        yield CheckpointSaved(at_s=at_s, step=number, path=f"step-{number}", took_s=0.1)
    every = min(LOST_EVERY, num_steps)
    worker = names[number // every % len(names)]
    phase = number % every
    if phase == every // 2:
        yield WorkerLost(at_s=at_s, worker=worker, step=step, cause="signal SIGKILL")
        yield _recovered(step, at_s, worker, "death", len(names) - 1)
    elif phase == every // 2 + 20:
        stage = int(worker.split(".")[1])
        yield WorkerJoined(
            at_s=at_s, worker=worker, stage=stage, step=step, copied_bytes=1 << 20, took_s=1.5
        )
        yield _recovered(step, at_s, worker, "join", len(names))
    elif phase == every // 4:
        yield Diagnosed(
            at_s=at_s,
            step=step,
            cause="slow worker",
            subject=worker,
            factor=2.5,
            excess_s=0.0,
            since=step - 5,
            confidence=0.98,
            evidence="operations take 45 ms, 18 ms before",
        )
    elif phase == every // 3:
        yield SlownessOver(
            at_s=at_s, step=step, cause="slow worker", subject=worker, since=step - 5
        )


def _recovered(step: int, at_s: float, worker: str, cause: str, members: int) -> Recovered:
    return Recovered(
        at_s=at_s,
        epoch=step,
        step=step,
        cause=cause,
        workers=(worker,),
        fault_s=at_s - 0.08,
        notice_s=at_s - 0.07,
        plan_s=at_s - 0.05,
        resumed_s=at_s,
        redone=3,
        operations=40,
        members=members,
        period_s=STEP_S,
        reason=f"{members} workers",
        num_lost=int(cause == "death"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--running", action="store_true", help="without its end")
    args = parser.parse_args()
    make_run(args.run_dir, args.steps, args.workers, finished=not args.running)


if __name__ == "__main__":
    main()
