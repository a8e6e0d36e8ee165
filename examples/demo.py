"""Trains twice: in peace, and through a kill, a slowdown and a re-join. Compares the results.

Run it with ``make demo``.
"""

import json
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).with_name("tiny_gpt.py")
LAYOUT = ["--pipelines", "2", "--stages", "2", "--microbatches", "8", "--steps", "40"]
FAULTS = ["kill 1.0 @ 10.B2", "slow 0.1=0.5 @ 16", "slow 0.1=1 @ 20", "join @ 24"]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def train(run_dir: Path, *more: str) -> dict:
    words = [sys.executable, "-m", "holdfast", "train", str(JOB), *LAYOUT]
    done = subprocess.run([*words, "--run-dir", str(run_dir), *more])
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads((run_dir / "summary.json").read_text())


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    say("--- undisturbed")
    peace = train(root / "undisturbed")
    say("\n--- the same through a kill, a slowdown and a re-join")
    flags = [word for fault in FAULTS for word in ("--fault", fault)]
    storm = train(root / "disturbed", *flags)
    subprocess.run([sys.executable, "-m", "holdfast", "trace", str(root / "disturbed")], check=True)
    return report(peace, storm)


def report(peace: dict, storm: dict) -> int:
    fired = set(storm["faults_fired"])
    say(f"\n{len(fired)} of {len(FAULTS)} faults fired: {'; '.join(sorted(fired))}")
    for one in storm["recoveries"]:
        say(
            f"step {one['step'] + 1}, {one['cause']} of {', '.join(one['workers'])}: "
            f"went on after {one['seconds_to_resume']:.3f} s, {one['redone']} operations done again"
        )
    same = peace["parameters_sha256"] == storm["parameters_sha256"]
    say(f"undisturbed  sha256 {peace['parameters_sha256']}")
    say(f"disturbed    sha256 {storm['parameters_sha256']}")
    if not same or len(fired) < len(FAULTS):
        say("NOT as expected: the parameters differ, or a fault did not fire")
        return 1
    say("The parameters are the same, bit for bit.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
