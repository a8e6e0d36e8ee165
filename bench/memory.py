"""How much memory a worker takes, over what its stage needs: a GPT on D x S real workers.

Needed are the stage's own parameters, gradients and optimizer state (AdamW) in fp32, and the
activations of the micro-batches in flight. A worker's peak is the VmHWM of its process, from its
start to the end of the last checkpoint, in three phases; a run of a tiny model tells what of it
is interpreter and libraries, and that is subtracted. Pages that workers share are counted in both.

    .venv/bin/python bench/memory.py [--full] [--parameters 40e6] [--modes fast exact]
        [--layout 1x4] [--set recovery.consistency=undo]

``--full`` is a GPT of 400 million parameters: minutes, and about 12 GB. The last line is JSON;
``peak_over_need`` is the worst worker's, for each mode.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import holdfast as hf
from gpt_sized import Size
from holdfast.host import instruction_set
from holdfast.runtime.stage.measure import kept_by_autograd

instruction_set.prepare_script()
HERE = Path(__file__).parent
FULL, SMALL, TINY = 400_000_000, 40_000_000, 0
LIMIT_S = 3000.0
STEPS, SAVED = 3, 2  # a checkpoint on the way, and one at the end
PHASES = ("start", "steps", "end")  # until the first step is done; until the last; last checkpoint
BYTES = 4


class Need(NamedTuple):
    """Of one stage, in bytes."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


class Shape(NamedTuple):
    pipelines: int
    stages: int
    microbatches: int
    samples: int


def needs(size: Size, shape: Shape) -> list[Need]:
    with torch.device("meta"):
        layers = size.layers()
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    cuts = [0, *size.cut, len(layers)]
    held = block_bytes(size, shape.samples)
    found = []
    for stage in range(shape.stages):
        numel = sum(counts[cuts[stage] : cuts[stage + 1]])
        blocks = size.depth // size.stages
        activations = in_flight(shape, stage) * blocks * held
        found.append(Need(BYTES * numel, BYTES * numel, 2 * BYTES * numel, activations))
    return found


def block_bytes(size: Size, samples: int) -> int:
    """What autograd keeps of one block for one micro-batch, parameters aside."""
    block = size._replace(depth=1).layers()[1]
    x = torch.zeros(samples, 128, size.width, requires_grad=True)
    with kept_by_autograd() as kept:
        _out = nn.Sequential(block)(x)
    return kept.num_bytes(without=block.parameters())


def in_flight(shape: Shape, stage: int) -> int:
    """Most micro-batches that have been forward and are not all the way back, as planned."""
    plan = hf.plan(pipelines=shape.pipelines, stages=shape.stages, microbatches=shape.microbatches)
    most = now = 0
    lanes = {str(worker): lane for worker, lane in plan.schedule().lanes.items()}
    for op in lanes[f"0.{stage}"]:
        kind = op.kind.name
        now += (kind == "F") - (kind in ("W", "BW"))
        most = max(most, now)
    return most


class Worker(NamedTuple):
    pid: int
    name: str


class Run:
    """One training run, whose workers' peaks are read, and set back, from phase to phase."""

    def __init__(self, folder: Path, size: Size, shape: Shape, words: list[str]) -> None:
        self._folder = folder
        self.peaks: dict[str, dict[str, int]] = {phase: {} for phase in PHASES}
        command = [
            sys.executable, "-m", "holdfast", "train", str(HERE / "gpt_sized.py"),
            "--pipelines", str(shape.pipelines), "--stages", str(shape.stages),
            "--microbatches", str(shape.microbatches), "--steps", str(STEPS),
            "--run-dir", str(folder), "--set", f"checkpoint.every_steps={SAVED}", *words, "--",
            "--width", str(size.width), "--depth", str(size.depth), "--stages", str(size.stages),
            "--samples", str(shape.samples),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def watch(self) -> dict[str, Any]:
        until_s, phase = time.monotonic() + LIMIT_S, 0
        try:
            while self._process.poll() is None and time.monotonic() < until_s:
                done = self._steps_done()
                at = (done >= 1) + (done >= STEPS)
                if at > phase:
                    self._read(PHASES[phase])
                    phase = at
                    self._set_back()
                time.sleep(0.1)
        finally:
            self._process.terminate()
            self._process.wait()
        if self._process.returncode:
            sys.exit(f"the run ended with {self._process.returncode}")
        found: dict[str, Any] = json.loads((self._folder / "summary.json").read_text())
        self.peaks[PHASES[phase]] = found["peak_memory_bytes"]  # since it was set back
        return found

    def _steps_done(self) -> int:
        path = self._folder / "events.jsonl"
        return path.read_text().count('"StepFinished"') if path.exists() else 0

    def _workers(self) -> list[Worker]:
        """Among the descendants of the launcher."""
        parents: dict[int, int] = {}
        names: dict[int, str] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, tail = path.read_text().rpartition(")")
            except OSError:  # it has ended
                continue
            pid = int(path.parent.name)
            names[pid], parents[pid] = head.partition("(")[2], int(tail.split()[1])
        found = []
        for pid, name in names.items():
            above = pid
            while above in parents and above != self._process.pid:
                above = parents[above]
            if above == self._process.pid and name.startswith("holdfast ") and "." in name:
                found.append(Worker(pid, name.removeprefix("holdfast ")))
        return found

    def _read(self, phase: str) -> None:
        for worker in self._workers():
            try:
                status = Path(f"/proc/{worker.pid}/status").read_text()
            except OSError:
                continue
            if "VmHWM:" in status:
                peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                self.peaks[phase][worker.name] = peak

    def _set_back(self) -> None:
        for worker in self._workers():
            try:
                Path(f"/proc/{worker.pid}/clear_refs").write_text("5")
            except OSError:
                continue


def peaks_of(size: Size, shape: Shape, mode: str, settings: list[str]) -> dict[str, dict[str, int]]:
    words = ["--set", f"gradients.mode={mode}"]
    for setting in settings:
        words += ["--set", setting]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run", size, shape, words)
        run.watch()
    return run.peaks


def measure(size: Size, shape: Shape, mode: str, settings: list[str]) -> dict[str, Any]:
    """Bytes of the worker with the largest peak over need, and of what they are made."""
    tiny = peaks_of(Size.of(TINY, shape.stages), shape, mode, settings)
    baseline = max(peak for workers in tiny.values() for peak in workers.values())
    peaks, needed = peaks_of(size, shape, mode, settings), needs(size, shape)
    print(f"\n{mode}: MB beside {baseline / 1e6:.0f} of interpreter and libraries")
    print(f"{'worker':8}{'need':>8}" + "".join(f"{phase:>8}" for phase in PHASES) + f"{'ratio':>8}")
    found: list[dict[str, Any]] = []
    for name in sorted(peaks[PHASES[0]]):
        need = needed[int(name.partition(".")[2])]
        own = {phase: peaks[phase].get(name, 0) - baseline for phase in PHASES}
        ratio = max(own.values()) / need.total
        columns = [need.total, *own.values()]
        print(f"{name:8}" + "".join(f"{n / 1e6:8.0f}" for n in columns) + f"{ratio:8.2f}")
        of_need = {f"need_{part}": n for part, n in need._asdict().items()}
        of_peak = {f"peak_{phase}": n for phase, n in own.items()}
        found.append({"ratio": round(ratio, 3), "worker": name, **of_need, **of_peak})
    return max(found, key=lambda one: one["ratio"]) | {"baseline": baseline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL / 1e6:.0f} million parameters")
    parser.add_argument("--parameters", type=float, default=SMALL)
    parser.add_argument("--modes", nargs="+", choices=("fast", "exact"), default=["fast", "exact"])
    parser.add_argument("--layout", default="1x4", metavar="DxS")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1, help="of 128 tokens, a micro-batch")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    pipelines, _, stages = args.layout.partition("x")
    shape = Shape(int(pipelines), int(stages), args.microbatches, args.samples)
    size = Size.of(FULL if args.full else int(args.parameters), shape.stages)
    with torch.device("meta"):
        total = sum(p.numel() for layer in size.layers() for p in layer.parameters())
    print(f"{total / 1e6:.0f} million parameters, {args.layout}, {' '.join(args.set)}", flush=True)
    worst = {mode: measure(size, shape, mode, args.set) for mode in args.modes}
    figures = {
        "peak_over_need": {mode: one["ratio"] for mode, one in worst.items()},
        "parameters": total,
        "layout": args.layout,
        "settings": args.set,
        "bytes": worst,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
