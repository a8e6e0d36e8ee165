"""What events cost: who writes them, and who opens a long run.

    .venv/bin/python bench/events.py [--steps 1000000] [--workers 64] [--emitted 2000] [--dir DIR]

1. Opening: a made-up run (``synthetic_run.py``) is opened in a process of its own, with its index
   and without; CPU seconds and the peak of its memory are those of the whole process. "To the
   losses" is what a first picture needs: open, the final row of each step, 1,000 of the losses.
2. Writing: what the coordinator's loop waits in a step, for the events of its workers and its own,
   on this disk and on one that is stuck; beside it the same lines written in the loop itself.
"""

import argparse
import io
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.observability.events import Event, StepFinished, WorkerStep, encode_event
from holdfast.observability.log import EventWriter, RunLog
from synthetic_run import STEP_S, make_run

NUM_POINTS = 1000
LAST_STEPS = 8  # whose operations a timeline shows


def opened(run_dir: Path) -> dict[str, float]:
    """In this process, which has done nothing else."""
    start_s = time.perf_counter()
    log = RunLog.open(run_dir)
    final = log.steps.final()
    curve = final.loss[:: max(1, len(final) // NUM_POINTS)]
    opened_s = time.perf_counter()
    last = int(final.step[-1])
    operations = log.operations(last - LAST_STEPS + 1, last)
    return {
        "to_the_losses_s": round(opened_s - start_s, 3),
        "operations_s": round(time.perf_counter() - opened_s, 3),
        "cpu_s": round(time.process_time(), 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "steps": len(final),
        "points": len(curve),
        "operations": len(operations),
    }


def in_a_process(run_dir: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--open", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def opening(folder: Path, num_steps: int, num_workers: int) -> dict[str, dict[str, float]]:
    run_dir = make_run(folder / "run", num_steps, num_workers)
    found = {"with_index": in_a_process(run_dir)}
    shutil.rmtree(run_dir / "index")
    found["without_index"] = in_a_process(run_dir)
    shutil.rmtree(run_dir)
    return found


class StuckDisk(io.RawIOBase):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def write(self, data: bytes) -> int:
        self.goes_on.wait()
        return len(data)


def events_of(step: int, num_workers: int) -> list[Event]:
    ops = tuple((f"0{kind}{number}", 0.1, 0.2) for number in range(4) for kind in "FBW")
    found: list[Event] = [
        WorkerStep(
            at_s=step * STEP_S,
            worker=f"{number}.0",
            step=step,
            ops=ops,
            cpu_s=(0.05,) * 12,
            sizes=(16384,) * 12,
        )
        for number in range(num_workers)
    ]
    done = StepFinished(
        at_s=step * STEP_S, step=step, loss=2.5, gradient_norm=1.0, tokens=4096, took_s=STEP_S
    )
    return [*found, done]


def waited_us(
    emit: Callable[[Event], object], num_steps: int, num_workers: int
) -> dict[str, float]:
    """Of a step. A pause after each: a loop that does nothing else leaves no time to the writer."""
    found = []
    for step in range(num_steps):
        every = events_of(step, num_workers)
        start_s = time.perf_counter()
        for event in every:
            emit(event)
        found.append(1e6 * (time.perf_counter() - start_s))
        time.sleep(0.001)
    found.sort()
    return {
        "median_us": round(statistics.median(found), 1),
        "p99_us": round(found[int(0.99 * num_steps)], 1),
        "most_us": round(found[-1], 1),
    }


def writing(folder: Path, num_steps: int, num_workers: int) -> dict[str, dict[str, float]]:
    found = {}
    with (folder / "plain.jsonl").open("ab", buffering=0) as file:
        found["in_the_loop"] = waited_us(
            lambda event: file.write(encode_event(event).encode() + b"\n"), num_steps, num_workers
        )
    (folder / "run").mkdir()
    writer = EventWriter.of_run(folder / "run", 200_000_000)
    found["by_the_writer"] = waited_us(writer.emit, num_steps, num_workers)
    writer.close()
    disk = StuckDisk()
    stuck = EventWriter(disk)
    found["stuck_disk"] = waited_us(stuck.emit, num_steps, num_workers)
    disk.goes_on.set()
    stuck.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the run that is opened")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--emitted", type=int, default=2000, help="steps that are written")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="on the disk to measure")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open is not None:
        print(json.dumps(opened(args.open)))
        return
    args.dir.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = {
            "opening": opening(Path(folder), args.steps, args.workers),
            "writing_4": writing(Path(tempfile.mkdtemp(dir=folder)), args.emitted, 4),
            "writing": writing(Path(tempfile.mkdtemp(dir=folder)), args.emitted, args.workers),
        }
    for what, cases in found.items():
        for name, figures in cases.items():
            print(what, name, ", ".join(f"{key} {value}" for key, value in figures.items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
