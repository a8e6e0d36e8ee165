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
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"
PIPELINES, STAGES, PER_PIPELINE = 2, 4, 8
OP_S = 0.020
BOUND_S = PER_PIPELINE * 3 * OP_S
IDEAL_1F1B_S = (PER_PIPELINE + STAGES - 1) * 3 * OP_S
WARM_UP_STEPS = 3


def run(schedule: str, steps: int) -> tuple[float, float]:
    """Median steady step time of one run, and the cost of a step's end (see below)."""
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
    return statistics.median(times_s[WARM_UP_STEPS:]), step_end_s(events)


def step_end_s(events: list[dict[str, Any]]) -> float:
    """Median time from stage 0's last backward of a step to its first forward of the next one:
    reduction, verdict, optimizer step, report.

    Of the holder that came last to it: the others also wait for that one.
    """
    ops = {(e["worker"], e["step"]): e["ops"] for e in events if e["event"] == "WorkerStep"}
    shortest_s: dict[int, float] = {}
    for (worker, step), mine in ops.items():
        after = ops.get((worker, step + 1))
        if worker.endswith(".0") and step >= WARM_UP_STEPS and after:
            gap_s = after[0][1] - mine[-2][2]
            shortest_s[step] = min(gap_s, shortest_s.get(step, gap_s))
    return statistics.median(shortest_s.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    measured: dict[str, list[float]] = {"zero-bubble": [], "1f1b": []}
    ends_s: list[float] = []
    for number in range(args.rounds):
        for name in measured:
            period_s, end_s = run(name, args.steps)
            measured[name].append(period_s)
            ends_s.append(end_s)
        print(
            f"round {number}: " + ", ".join(f"{n} {t[-1]:.4f} s" for n, t in measured.items()),
            flush=True,
        )
    periods_s = {name: statistics.median(times) for name, times in measured.items()}
    ideal_s = {"zero-bubble": BOUND_S, "1f1b": IDEAL_1F1B_S}
    print(f"\n{'':12}{'step s':>9}{'ideal s':>9}{'over bound':>12}{'over own ideal':>16}")
    for name, seconds in periods_s.items():
        print(
            f"{name:12}{seconds:9.4f}{ideal_s[name]:9.4f}{seconds / BOUND_S:12.4f}"
            f"{seconds / ideal_s[name]:16.4f}"
        )
    print("(emulated devices: operations sleep)\n")
    num_ops = PER_PIPELINE * 3
    figures = {
        "zero_bubble_over_bound": round(periods_s["zero-bubble"] / BOUND_S, 4),
        "one_f_one_b_over_bound": round(periods_s["1f1b"] / BOUND_S, 4),
        "overhead_ms_per_op": round((periods_s["zero-bubble"] - BOUND_S) / num_ops * 1e3, 4),
        "overhead_ms_per_step": round(statistics.median(ends_s) * 1e3, 4),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
