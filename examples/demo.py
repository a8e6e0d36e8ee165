"""Trains twice: in peace, and through a slowdown, a kill and a re-join. Compares the results.

Run it with ``make demo``. A report of what happened is printed and written to ``report.md``.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from holdfast import instruction_set

JOB = Path(__file__).with_name("tiny_gpt.py")
LAYOUT = ["--pipelines", "2", "--stages", "2", "--microbatches", "8", "--steps", "70"]
LAYOUT += ["--set", "workers.replace=0"]  # it stays away until the join
FAULTS = ["slow 0.1 @ 21-40 x4.0", "kill 1.0 @ 54.B2", "join @ 58"]
SLOW = (20, 40)  # steps, counted from 0


class Report:
    """Everything is said, and kept for the file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str = "") -> None:
        self.lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def train(run_dir: Path, *more: str) -> dict:
    words = [sys.executable, "-m", "holdfast", "train", str(JOB), *LAYOUT]
    done = subprocess.run([*words, "--run-dir", str(run_dir), *more])
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads((run_dir / "summary.json").read_text())


def events_of(run_dir: Path, kind: str) -> list[dict]:
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    instruction_set.prepare_script()  # said once, not by each of the runs
    report = Report()
    report.say("--- undisturbed")
    peace = train(root / "undisturbed")
    report.say("\n--- the same through a slowdown, a kill and a re-join")
    flags = [word for fault in FAULTS for word in ("--fault", fault)]
    storm = train(root / "disturbed", *flags)
    subprocess.run([sys.executable, "-m", "holdfast", "trace", str(root / "disturbed")], check=True)
    code = tell(report, peace, storm, root / "disturbed")
    (root / "report.md").write_text("# Demo\n\n```text\n" + "\n".join(report.lines) + "\n```\n")
    report.say(f"report in {root / 'report.md'}")
    return code


def tell(report: Report, peace: dict, storm: dict, run_dir: Path) -> int:
    fired = set(storm["faults_fired"])
    report.say(f"\n{len(fired)} of {len(FAULTS)} faults fired: {'; '.join(sorted(fired))}")
    found = tell_slowness(report, storm, run_dir)
    for one in storm["recoveries"]:
        report.say(
            f"step {one['step'] + 1}, {one['cause']} of {', '.join(one['workers'])}: "
            f"went on after {one['seconds_to_resume']:.3f} s, {one['redone']} operations done again"
        )
    same = peace["parameters_sha256"] == storm["parameters_sha256"]
    report.say(f"undisturbed  sha256 {peace['parameters_sha256']}")
    report.say(f"disturbed    sha256 {storm['parameters_sha256']}")
    if not same or len(fired) < len(FAULTS) or not found:
        report.say(
            "NOT as expected: the parameters differ, a fault did not fire, or nobody was found slow"
        )
        return 1
    report.say("The parameters are the same, bit for bit.")
    return 0


def tell_slowness(report: Report, storm: dict, run_dir: Path) -> bool:
    """What was found, what was done, and how fast training was meanwhile."""
    found = [d for d in storm["diagnoses"] if d["subject"] == "0.1" and SLOW[0] <= d["step"]]
    for one in found[:1]:
        report.say(
            f"step {one['step'] + 1}, {one['cause']}: {one['subject']} takes {one['factor']:.2f} x "
            f"as long since step {one['since'] + 1}: {one['evidence']}"
        )
    for one in storm["switches"]:
        report.say(f"from step {one['step'] + 1} on another plan ({one['cause']}), without a stop")
    took_s = {event["step"]: event["took_s"] for event in events_of(run_dir, "StepFinished")}
    switches = [s["step"] for s in storm["switches"] if SLOW[0] < s["step"] < SLOW[1]]
    planned = switches[0] if switches else SLOW[1]
    stretches = {
        "before": (5, SLOW[0]),
        "slow, not yet planned around": (SLOW[0], planned),
        "slow, planned around": (planned + 1, SLOW[1]),
        "after": (SLOW[1] + 6, 53),
    }
    for name, (first, last) in stretches.items():
        steps = [took_s[step] for step in range(first, last) if step in took_s]
        if steps:
            report.say(f"  {name:30} {1 / median(steps):5.2f} steps/s")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
