"""Steady step time on emulated devices against the bound: 2 x 4 workers, 20 ms operations.

Processes, transport, schedule and sums are real; F, B and W sleep. 8 micro-batches a pipeline,
memory for 2S = 8 of them in flight. The bound is M(F + B + W), which no schedule can beat.

    .venv/bin/python bench/period.py [--rounds 3] [--steps 12]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"
PIPELINES, STAGES, PER_PIPELINE = 2, 4, 8
OP_S = 0.020
BOUND_S = PER_PIPELINE * 3 * OP_S
IDEAL_1F1B_S = (PER_PIPELINE + STAGES - 1) * 3 * OP_S
WARM_UP_STEPS = 3


def run(schedule: str, steps: int) -> float:
    """Median steady step time of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        subprocess.run(
            [
                sys.executable, "-m", "holdfast", "train", str(EXAMPLE),
                "--pipelines", str(PIPELINES), "--stages", str(STAGES),
                "--microbatches", str(PIPELINES * PER_PIPELINE), "--steps", str(steps),
                "--run-dir", str(run_dir), "--set", f"schedule.name={schedule}",
                "--set", "device.emulate=F=20ms,B=20ms,W=20ms",
                "--set", "checkpoint.at_end=false",
            ],
            stdout=subprocess.DEVNULL, check=True, timeout=600,
        )  # fmt: skip
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    times_s = [event["took_s"] for event in events if event["event"] == "StepFinished"]
    return statistics.median(times_s[WARM_UP_STEPS:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    measured: dict[str, list[float]] = {"zero-bubble": [], "1f1b": []}
    for number in range(args.rounds):
        for name in measured:
            measured[name].append(run(name, args.steps))
        print(
            f"round {number}: " + ", ".join(f"{n} {t[-1]:.4f} s" for n, t in measured.items()),
            flush=True,
        )
    period_s = {name: statistics.median(times) for name, times in measured.items()}
    ideal_s = {"zero-bubble": BOUND_S, "1f1b": IDEAL_1F1B_S}
    print(f"\n{'':12}{'step s':>9}{'ideal s':>9}{'over bound':>12}{'over own ideal':>16}")
    for name, seconds in period_s.items():
        print(
            f"{name:12}{seconds:9.4f}{ideal_s[name]:9.4f}{seconds / BOUND_S:12.4f}"
            f"{seconds / ideal_s[name]:16.4f}"
        )
    print("(emulated devices: operations sleep)\n")
    num_ops = PER_PIPELINE * 3
    figures = {
        "zero_bubble_over_bound": round(period_s["zero-bubble"] / BOUND_S, 4),
        "one_f_one_b_over_bound": round(period_s["1f1b"] / BOUND_S, 4),
        "overhead_ms_per_op": round((period_s["zero-bubble"] - BOUND_S) / num_ops * 1e3, 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
