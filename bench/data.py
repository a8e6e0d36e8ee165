"""What a slow data set costs: a sample as slow as its forward, loaded ahead and not.

1x2 real workers, real tensors. The data of a micro-batch take as long as its forward through the
whole model, by sleeping as for a disk or a network. Three kinds of runs take turns: data that take
no time, loaded when they are needed, loaded ahead. A round's figure is its median step after the
warm-up, against that of the first kind in the same round; of these the median counts.

    .venv/bin/python bench/data.py [--rounds 5] [--steps 40]

The last line is JSON; ``slow_data_cost`` is the share of throughput lost with loading ahead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from holdfast.host import instruction_set

instruction_set.prepare_script()
LIMIT_S = 300.0
WARM_UP_STEPS = 4
MICROBATCHES, SAMPLES, WIDTH, LAYERS = 8, 16, 1024, 8
WAYS = {"no time": (False, 0), "when needed": (True, 0), "ahead": (True, 1)}
JOB = f"""
import os, time
import torch
from torch import nn
from holdfast import Job

SAMPLE_S = float(os.environ["BENCH_SAMPLE_S"])


class Samples:
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if SAMPLE_S:
            time.sleep(SAMPLE_S)
        return torch.full(({WIDTH},), index / 1e5), torch.zeros({WIDTH})


def job():
    return Job(
        layers=[nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.ReLU()) for _ in range({LAYERS})],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        data=Samples(),
        microbatch_size={SAMPLES},
    )
"""


def forward_s() -> float:
    """Of a micro-batch through all layers, in one thread as a worker has it."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    batch, took = torch.rand(SAMPLES, WIDTH), []
    for _ in range(50):
        start_s = time.perf_counter()
        model(batch)
        took.append(time.perf_counter() - start_s)
    return statistics.median(took)


def step_s(folder: Path, sample_s: float, loaders: int, steps: int) -> tuple[float, str]:
    """A run's median step, and the hash of its parameters."""
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    words = [
        sys.executable, "-m", "holdfast", "train", str(folder / "job.py"), "--stages", "2",
        "--microbatches", str(MICROBATCHES), "--steps", str(steps), "--run-dir", str(run_dir),
        "--set", f"data.workers={loaders}", "--set", "checkpoint.every_steps=0",
        "--set", "checkpoint.at_end=false",
    ]  # fmt: skip
    environment = os.environ | {"BENCH_SAMPLE_S": str(sample_s)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    ends_s = [event["at_s"] for event in events if event["event"] == "StepFinished"]
    took = [b - a for a, b in pairwise(ends_s)][WARM_UP_STEPS:]
    summary = json.loads((run_dir / "summary.json").read_text())
    return statistics.median(took), summary["parameters_sha256"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    slow_s = forward_s() / SAMPLES
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    hashes = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        for number in range(args.rounds):
            for way in list(WAYS) if number % 2 == 0 else reversed(list(WAYS)):
                is_slow, loaders = WAYS[way]
                took_s, sha256 = step_s(folder, slow_s if is_slow else 0.0, loaders, args.steps)
                found[way].append(took_s)
                hashes.add(sha256)
            told = ", ".join(f"{way} {1e3 * found[way][-1]:.1f} ms" for way in WAYS)
            print(f"round {number + 1}: {told}; load {os.getloadavg()[0]:.1f}", flush=True)
    if len(hashes) != 1:
        sys.exit(f"the runs ended in different parameters: {sorted(hashes)}")
    cost = {
        way: statistics.median(1 - a / b for a, b in zip(found["no time"], found[way], strict=True))
        for way in WAYS
    }
    figures = {
        "slow_data_cost": round(cost["ahead"], 4),
        "slow_data_cost_when_needed": round(cost["when needed"], 4),
        "forward_ms": round(1e3 * slow_s * SAMPLES, 3),
        "step_ms": {way: round(1e3 * statistics.median(found[way]), 2) for way in WAYS},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
