"""Holdfast's own cost: 2x2 real workers against PyTorch's pipelining on the same job.

Both run 1F1B with one thread a worker on real tensors. All systems are started and warmed up,
then take turns of a few seconds: one runs while the others are stopped (SIGSTOP), so that drifts
of the machine hit all alike. A step's time is the time its system ran. The whole is done several
times; medians count. Nobody writes checkpoints. With a second source tree of Holdfast, say an
older commit in a git worktree, that one takes turns too.

    .venv/bin/python bench/overhead.py [--rounds 3] [--steps 40] [--turn 2.5] [--before DIR]
"""

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groups import signal_all
from holdfast.config import RunConfig
from holdfast.host import instruction_set
from holdfast.protocol.spec import worker_environment

instruction_set.prepare_script()  # for the peer as for Holdfast
HERE = Path(__file__).parent
MICROBATCHES = 16
TOKENS_A_STEP = MICROBATCHES * 4 * 128
WARM_UP_STEPS = 2
LIMIT_S = 1500.0
SYSTEMS = ("peer", "fast", "exact")
BEFORE = " before"  # names the same of another source tree
# What the agent sets for Holdfast's workers, for the peer too.
ENVIRONMENT = worker_environment(RunConfig())


class System:
    """One training run in a process group of its own, which can be stopped and continued."""

    def __init__(self, name: str, steps: int, folder: Path, source: Path | None) -> None:
        self.name, self.folder = name, folder / name.replace(" ", "-")
        path = {} if source is None else {"PYTHONPATH": str(source / "src")}
        self.turns: list[tuple[float, float]] = []
        self._started_s = time.monotonic()
        command = self._peer(steps) if name == "peer" else self._holdfast(steps)
        self._process = subprocess.Popen(
            command, env=ENVIRONMENT | path, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _peer(self, steps: int) -> list[str]:
        self.folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        numbers = [str(port), str(MICROBATCHES), str(steps)]
        return [sys.executable, "-W", "ignore", str(HERE / "peer.py"), *numbers, str(self.folder)]

    def _holdfast(self, steps: int) -> list[str]:
        return [
            sys.executable, "-m", "holdfast", "train", str(HERE / "gpt4m.py"),
            "--pipelines", "2", "--stages", "2", "--microbatches", str(MICROBATCHES),
            "--steps", str(steps), "--run-dir", str(self.folder),
            "--set", f"gradients.mode={self.name.split()[0]}", "--set", "schedule.name=1f1b",
            "--set", "checkpoint.every_steps=0", "--set", "checkpoint.at_end=false",
        ]  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def step_ends_s(self) -> list[float]:
        if self.name == "peer":
            ranks = [path.read_text().split() for path in self.folder.glob("*.steps")]
            whole = zip(*ranks, strict=False) if len(ranks) == 4 else ()
            return [max(map(float, times)) for times in whole]
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["at_s"] for event in events if event["event"] == "StepFinished"]

    def warm_up(self) -> None:
        while len(self.step_ends_s()) < WARM_UP_STEPS:
            if not self.running or time.monotonic() - self._started_s > LIMIT_S:
                sys.exit(f"{self.name} did not start")
            time.sleep(0.2)
        self._signal(signal.SIGSTOP)
        self.turns.append((self._started_s, time.monotonic()))

    def take_turn(self, turn_s: float) -> None:
        start_s = time.monotonic()
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(turn_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGSTOP)
        self.turns.append((start_s, time.monotonic()))

    def end(self) -> None:
        if self.running:
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        signal_all(self._process.pid, number)

    def step_times_s(self) -> list[float]:
        """Of each step after the warm-up, the time during which this system ran."""
        ran_s = [
            sum(max(0.0, min(end_s, stop_s) - start_s) for start_s, stop_s in self.turns)
            for end_s in self.step_ends_s()
        ]
        return [
            b - a for a, b in zip(ran_s[WARM_UP_STEPS:], ran_s[WARM_UP_STEPS + 1 :], strict=False)
        ]

    def result(self) -> dict[str, Any]:
        if self._process.returncode:
            sys.exit(f"{self.name} ended with {self._process.returncode}")
        if self.name == "peer":
            found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        else:
            found = json.loads((self.folder / "summary.json").read_text())
            found["peak_bytes"] = list(found["peak_memory_bytes"].values())
        return found | {"step_s": statistics.mean(self.step_times_s())}


def run_round(
    number: int, steps: int, turn_s: float, names: Sequence[str], before: Path | None
) -> dict[str, dict[str, Any]]:
    order = names if number % 2 == 0 else names[::-1]
    with tempfile.TemporaryDirectory() as folder:
        systems: list[System] = []
        try:
            for name in order:
                source = before if name.endswith(BEFORE) else None
                systems.append(System(name, steps, Path(folder), source))
                systems[-1].warm_up()
            while any(system.running for system in systems):
                for system in systems:
                    if system.running:
                        system.take_turn(turn_s)
        finally:
            for system in systems:
                system.end()
        results = {system.name: system.result() for system in systems}
    check_same_training(results)
    return results


def check_same_training(results: dict[str, dict[str, Any]]) -> None:
    """A comparison of speed means nothing unless all train the same model on the same data.

    Another source tree may have its samples in another order: its modes are held against each
    other, and against the peer by the mean of all losses.
    """
    for name, result in results.items():
        like = SYSTEMS[1] + BEFORE if name.endswith(BEFORE) else "peer"
        mean, peers_mean = (statistics.mean(one["losses"]) for one in (result, results["peer"]))
        pairs = zip(result["losses"], results[like]["losses"], strict=True)
        for mine, others in [*pairs, (mean, peers_mean)]:
            if abs(mine - others) > 1e-2 * abs(others):
                sys.exit(f"{name} does not train as {like} does: loss {mine} against {others}")


def over_before(rounds: list[dict[str, dict[str, Any]]], name: str) -> float:
    """Its speed over that of the other source tree."""
    ratios = [one[name + BEFORE]["step_s"] / one[name]["step_s"] for one in rounds]
    return round(statistics.median(ratios), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turn", type=float, default=2.5, help="seconds of one turn")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another source tree")
    args = parser.parse_args()
    if args.before is not None and not (args.before / "src" / "holdfast").is_dir():
        parser.error(f"--before {args.before}: expected a directory with src/holdfast in it")
    names = SYSTEMS if args.before is None else (*SYSTEMS, *(n + BEFORE for n in SYSTEMS[1:]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that run_round ends what it started
    rounds = []
    for number in range(args.rounds):
        rounds.append(run_round(number, args.steps, args.turn, names, args.before))
        times = ", ".join(f"{name} {rounds[-1][name]['step_s']:.3f} s" for name in names)
        print(f"round {number}: {times}", flush=True)

    def median(of: Any) -> float:
        return statistics.median(of(result) for result in rounds)

    speed = {n: median(lambda r, n=n: r["peer"]["step_s"] / r[n]["step_s"]) for n in names}
    peak = {n: median(lambda r, n=n: max(r[n]["peak_bytes"])) for n in names}
    print(
        f"\n{'':13}{'step s':>9}{'tokens/s':>10}{'speed/peer':>12}{'peak MB':>9}{'memory/peer':>13}"
    )
    for name in names:
        step_s = median(lambda r, n=name: r[n]["step_s"])
        print(
            f"{name:13}{step_s:9.3f}{TOKENS_A_STEP / step_s:10.0f}{speed[name]:12.3f}"
            f"{peak[name] / 1e6:9.0f}{peak[name] / peak['peer']:13.3f}"
        )
    print("(real workers, real tensors; peak: resident memory of the largest worker)\n")
    figures = {
        "fast_ratio": round(speed["fast"], 4),
        "exact_ratio": round(speed["exact"], 4),
        "fast_memory_ratio": round(peak["fast"] / peak["peer"], 4),
    }
    if args.before is not None:
        figures |= {f"{n}_over_before": over_before(rounds, n) for n in SYSTEMS[1:]}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
