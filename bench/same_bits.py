"""The same bits before and after: every example, in this source tree and in another one.

For changes of structure. Each example is trained in several layouts, through a kill, with a lost
stage and with a slow worker; in exact mode all of them end with the same parameters, in either
tree. Faults must have fired, or nothing is shown.

    .venv/bin/python bench/same_bits.py [--before DIR] [--examples tiny_gpt,resnet,hf_gpt2]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
EXAMPLES = "tiny_gpt,resnet,hf_gpt2"
STEPS = 6
LIMIT_S = 300.0
CASES = {  # what is trained, and what must have fired
    "1x1": ("1x1", []),
    "2x2": ("2x2", []),
    "1x4": ("1x4", []),
    "kill": ("2x2", ["--fault", "kill 1.0 @ 3.B1"]),
    "lost stage": ("1x4", ["--fault", "kill 0.2 @ 5", "--set", "recovery.log=boundary"]),
    "slow": ("2x2", ["--fault", "slow 1.0 @ 2-5 x3.0"]),
}


def train(tree: Path, example: str, case: str) -> str:
    """SHA-256 of the parameters at the end."""
    layout, more = CASES[case]
    pipelines, stages = layout.split("x")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        done = subprocess.run(
            [
                sys.executable, "-m", "holdfast", "train", str(tree / "examples" / f"{example}.py"),
                "--pipelines", pipelines, "--stages", stages, "--microbatches", "4",
                "--steps", str(STEPS), "--seed", "7", "--run-dir", str(run_dir), *more,
            ],
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{example} {case} in {tree} ended with {done.returncode}: {done.stderr}")
        summary = json.loads((run_dir / "summary.json").read_text())
    armed = more[1::2][: more.count("--fault")]
    if len(summary["faults_fired"]) < len(armed):
        sys.exit(f"{example} {case} in {tree}: {armed} did not fire, so nothing was shown")
    return str(summary["parameters_sha256"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="DIR", help="another source tree")
    parser.add_argument("--examples", default=EXAMPLES)
    args = parser.parse_args()
    trees = [HERE] if args.before is None else [args.before.resolve(), HERE]
    found: dict[str, set[str]] = {}
    for example in args.examples.split(","):
        for case in CASES:
            hashes = [train(tree, example, case) for tree in trees]
            found.setdefault(example, set()).update(hashes)
            print(f"{example:10}{case:12}" + "  ".join(one[:16] for one in hashes), flush=True)
    differing = sorted(example for example, hashes in found.items() if len(hashes) > 1)
    runs = len(found) * len(CASES) * len(trees)
    print(json.dumps({"runs": runs, "trees": len(trees), "differing": differing}))
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
