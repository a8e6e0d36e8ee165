"""Holdfast's own cost: 2x2 real workers against PyTorch's pipelining on the same job.

Both run 1F1B with one thread a worker on real tensors. Modes alternate; each round gives one
median step time a mode, and the ratio to the peer of the same round; the medians of those count.

    .venv/bin/python bench/overhead.py [--rounds 5] [--steps 8]
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MICROBATCHES = 16
TOKENS_A_STEP = MICROBATCHES * 4 * 128
WARM_UP_STEPS = 2
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(16 << 20),
}


def run_peer(steps: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", str(HERE / "peer.py")]
    done = subprocess.run(
        [*command, str(port), str(MICROBATCHES), str(steps)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, timeout=900,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_holdfast(mode: str, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        subprocess.run(
            [
                sys.executable, "-m", "holdfast", "train", str(HERE / "gpt4m.py"),
                "--pipelines", "2", "--stages", "2", "--microbatches", str(MICROBATCHES),
                "--steps", str(steps), "--run-dir", str(run_dir),
                "--set", f"gradients.mode={mode}", "--set", "schedule.name=1f1b",
                "--set", "checkpoint.at_end=false",
            ],
            stdout=subprocess.DEVNULL, check=True, timeout=900,
        )  # fmt: skip
        summary = json.loads((run_dir / "summary.json").read_text())
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    times_s = [event["took_s"] for event in events if event["event"] == "StepFinished"]
    peak_bytes = list(summary["peak_memory_bytes"].values())
    return {"times_s": times_s, "losses": summary["losses"], "peak_bytes": peak_bytes}


def check_same_training(results: dict[str, dict[str, Any]]) -> None:
    """A comparison of speed means nothing unless both train the same model on the same data."""
    for name, result in results.items():
        for mine, peers in zip(result["losses"], results["peer"]["losses"], strict=True):
            if abs(mine - peers) > 1e-3 * abs(peers):
                sys.exit(f"{name} does not train as the peer does: loss {mine} against {peers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    step_s: dict[str, list[float]] = {"peer": [], "fast": [], "exact": []}
    peak: dict[str, list[int]] = {"peer": [], "fast": [], "exact": []}
    for number in range(args.rounds):
        names = list(step_s) if number % 2 == 0 else list(step_s)[::-1]
        results = {
            name: run_peer(args.steps) if name == "peer" else run_holdfast(name, args.steps)
            for name in names
        }
        check_same_training(results)
        for name, result in results.items():
            step_s[name].append(statistics.median(result["times_s"][WARM_UP_STEPS:]))
            peak[name].append(max(result["peak_bytes"]))
        print(
            f"round {number}: " + ", ".join(f"{n} {step_s[n][-1]:.3f} s" for n in step_s),
            flush=True,
        )
    ratios = {
        name: statistics.median(p / t for p, t in zip(step_s["peer"], step_s[name], strict=True))
        for name in step_s
    }
    memory = {name: statistics.median(peak[name]) for name in peak}
    print(
        f"\n{'':8}{'step s':>10}{'tokens/s':>10}{'speed/peer':>12}{'peak MB':>9}{'memory/peer':>13}"
    )
    for name in step_s:
        median_s = statistics.median(step_s[name])
        print(
            f"{name:8}{median_s:10.3f}{TOKENS_A_STEP / median_s:10.0f}{ratios[name]:12.3f}"
            f"{memory[name] / 1e6:9.0f}{memory[name] / memory['peer']:13.3f}"
        )
    print("(real workers, real tensors; step s: median over rounds of each round's median step)\n")
    figures = {
        "fast_ratio": round(ratios["fast"], 4),
        "exact_ratio": round(ratios["exact"], 4),
        "fast_memory_ratio": round(memory["fast"] / memory["peer"], 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
