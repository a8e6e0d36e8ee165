"""One of two data-parallel replicas is killed or frozen: when does the other train on?

Holdfast (2 pipelines x 1 stage) and torchft run the same small GPT on this machine, one
micro-batch a replica. Measured the same way for both: from the signal to the end of the first
step that is done without the lost replica. That step is in it and nothing is taken off: Holdfast
keeps what the survivor had done of it, so that less a whole step would flatter it, even below
zero (``less_a_step_s`` is only for comparison with figures that others took this way). Lost
steps are those of the survivor that were thrown away or done again. Each signal hits a fresh
run; the systems take turns; medians count.

torchft lives in a virtual environment of its own. Making it is the only thing that downloads.

    .venv/bin/python bench/peers_torchft.py [--rounds 5] [--only holdfast] [--skip-install]
"""

import argparse
import ctypes
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.host import instruction_set

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "tiny_gpt.py"
REPLICA = Path(__file__).with_name("torchft_job.py")
PACKAGES = ("torch==2.13.0", "numpy")
WARM_UP_STEPS, ALONE_STEPS = 15, 12
MOST_STEPS = 20_000  # a run that nobody ends does end
START_LIMIT_S = 120.0
RESUME_LIMIT_S = 150.0  # well above the 60 s that torchft waits for a frozen peer
_PR_SET_PDEATHSIG = 1


class Case(NamedTuple):
    """One signal to one system. Limits of 0 are the system's own defaults."""

    name: str
    system: str
    number: signal.Signals
    heartbeat_timeout_s: float = 0.0  # torchft: of the lighthouse
    group_s: float = 0.0  # torchft only: limit of the process group
    says: str = "defaults"


CASES = (
    Case("torchft_default", "torchft", signal.SIGKILL),
    Case("torchft_1s", "torchft", signal.SIGKILL, 1.0, says="heartbeat limit 1 s"),
    Case("holdfast_kill", "holdfast", signal.SIGKILL),
    Case("torchft_frozen", "torchft", signal.SIGSTOP),
    Case("torchft_1s_frozen", "torchft", signal.SIGSTOP, 1.0, 1.0, "heartbeat and group limit 1 s"),
    Case("holdfast_frozen", "holdfast", signal.SIGSTOP),
    Case("holdfast_1s_frozen", "holdfast", signal.SIGSTOP, 1.0, says="heartbeat timeout 1 s"),
)


class StepEnd(NamedTuple):
    at_s: float
    tokens: int
    alone: bool  # ended without the lost replica
    lost: bool  # thrown away, or done again later


class Outcome(NamedTuple):
    resume_s: float  # from the signal to the end of the first step alone
    less_a_step_s: float
    step_s: float  # a usual step of the survivor alone
    steps_lost: int
    batch_kept: float  # tokens of a step alone / tokens of a step before


def judge(ends: Sequence[StepEnd], signal_s: float) -> Outcome | None:
    """None: the survivor has not done enough steps alone (yet)."""
    alone = [end for end in ends if end.alone and not end.lost and end.at_s > signal_s]
    before = [end for end in ends if not end.alone and end.at_s <= signal_s]
    if len(alone) < ALONE_STEPS or not before:
        return None
    step_s = statistics.median(b.at_s - a.at_s for a, b in pairwise(alone))
    resume_s = alone[0].at_s - signal_s
    return Outcome(
        resume_s=resume_s,
        less_a_step_s=resume_s - step_s,
        step_s=step_s,
        steps_lost=sum(end.lost for end in ends if end.at_s <= alone[0].at_s),
        batch_kept=alone[-1].tokens / before[-1].tokens,
    )


def torchft_ends(records: Sequence[dict[str, Any]], signal_s: float) -> list[StepEnd]:
    """From the survivor's log. What it did not commit before the signal is no fault of the signal's
    (the other replica was joining)."""
    ends = []
    for record in records:
        late = record["at_s"] > signal_s
        if late or record["committed"]:
            lost = not record["committed"]
            alone = record["participants"] == 1
            ends.append(StepEnd(record["at_s"], record["tokens"], alone, lost))
    return ends


def holdfast_ends(records: Sequence[dict[str, Any]], signal_s: float) -> list[StepEnd]:
    """From events.jsonl. A step is done without the lost worker if it ended after the recovery."""
    since_s, first_step = math.inf, 0
    for record in records:
        found = record["event"] == "Recovered" and record["num_lost"] > 0
        if found and record["resumed_s"] > signal_s:
            since_s, first_step = record["resumed_s"], record["step"]
            break
    steps = [record for record in records if record["event"] == "StepFinished"]
    last = {record["step"]: record["at_s"] for record in steps}
    return [
        StepEnd(
            at_s=step["at_s"],
            tokens=step["tokens"],
            alone=step["at_s"] > since_s and step["step"] >= first_step,
            lost=step["at_s"] < last[step["step"]],
        )
        for step in steps
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class System:
    """One run of a system, each process in a group of its own; ``end`` leaves nothing behind."""

    survivor: str  # the process that must live

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self._folder = case, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(self, name: str, command: Sequence[object], **environment: str) -> None:
        with (self._folder / f"{name}.out").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                list(map(str, command)),
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def alive(self) -> bool:
        return self._processes[self.survivor].poll() is None

    def end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:  # else its number may be somebody else's by now
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def last_words(self) -> str:
        lines = (self._folder / f"{self.survivor}.out").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "said nothing")


class Torchft(System):
    """A lighthouse and two replicas; number 1 is the victim."""

    survivor = "replica0"

    def __init__(self, case: Case, folder: Path, venv: Path) -> None:
        super().__init__(case, folder)
        self._bin = venv / "bin"

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        limit = ["--heartbeat_timeout_ms", str(round(self.case.heartbeat_timeout_s * 1e3))]
        command = [self._bin / "torchft_lighthouse", "--bind", address, "--min_replicas", "1"]
        self.spawn("lighthouse", [*command, *(limit if self.case.heartbeat_timeout_s else ())])
        for number in range(2):
            log = self._folder / f"{number}.jsonl"
            arguments = [JOB, str(number), str(MOST_STEPS), str(self.case.group_s), log]
            self.spawn(
                f"replica{number}",
                [self._bin / "python", "-W", "ignore", REPLICA, *arguments],
                PYTHONPATH=str(ROOT / "src"),
                TORCHFT_LIGHTHOUSE=f"http://{address}",
                GLOO_SOCKET_IFNAME="lo",
            )

    def ends(self, signal_s: float) -> list[StepEnd]:
        return torchft_ends(read_lines(self._folder / "0.jsonl"), signal_s)

    def victim(self) -> int:
        return self._processes["replica1"].pid


class Holdfast(System):
    """``holdfast train``; worker 1.0 is the victim."""

    survivor = "launcher"

    def start(self) -> None:
        settings = ["checkpoint.every_steps=0", "checkpoint.at_end=false", "workers.replace=0"]
        if self.case.heartbeat_timeout_s:
            settings.append(f"workers.heartbeat_timeout_s={self.case.heartbeat_timeout_s}")
        command = [
            sys.executable, "-m", "holdfast", "train", JOB,
            "--pipelines", "2", "--stages", "1", "--microbatches", "2",
            "--steps", str(MOST_STEPS), "--run-dir", self._folder / "run",
        ]  # fmt: skip
        self.spawn("launcher", command + [part for each in settings for part in ("--set", each)])

    def _events(self) -> list[dict[str, Any]]:
        return read_lines(self._folder / "run" / "events.jsonl")

    def ends(self, signal_s: float) -> list[StepEnd]:
        return holdfast_ends(self._events(), signal_s)

    def victim(self) -> int:
        ready = [event for event in self._events() if event["event"] == "WorkerReady"]
        return int(next(event["pid"] for event in ready if event["worker"] == "1.0"))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(condition: Callable[[], object], limit_s: float, alive: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s and alive():
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def trial(system: Torchft | Holdfast, pause_s: float) -> Outcome | str:
    """One signal after the warm-up and a pause, or why there is nothing to tell."""

    def warm() -> bool:
        ends = system.ends(math.inf)
        return len(ends) >= WARM_UP_STEPS and not any(end.alone for end in ends[-WARM_UP_STEPS:])

    try:
        system.start()
        if not wait_for(warm, START_LIMIT_S, system.alive):
            return f"did not start: {system.last_words()}"
        pid = system.victim()
        time.sleep(pause_s)
        signal_s = time.monotonic()
        os.kill(pid, system.case.number)

        def judged() -> Outcome | None:
            return judge(system.ends(signal_s), signal_s)

        wait_for(judged, RESUME_LIMIT_S, system.alive)
        return judged() or f"did not train on: {system.last_words()}"
    finally:
        system.end()


def run_round(number: int, cases: Sequence[Case], venv: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    generator = random.Random(number)
    for case in cases if number % 2 == 0 else cases[::-1]:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            torchft = case.system == "torchft"
            system = Torchft(case, folder, venv) if torchft else Holdfast(case, folder)
            # A pause of any length, so that the signal comes anywhere in a step.
            outcome = trial(system, pause_s=generator.uniform(0.2, 0.7))
        if isinstance(outcome, Outcome):
            found[case.name] = outcome
            words = f"{outcome.resume_s:.3f} s, {outcome.steps_lost} steps lost"
        else:
            words = outcome
        print(f"round {number}: {case.name}: {words}", flush=True)
    return found


def figures(cases: Sequence[Case], rounds: Sequence[dict[str, Outcome]]) -> dict[str, Any]:
    """Medians of each case; of lost steps the mean, as most are 0 or 1. None: no round worked."""

    def over(name: str, field: str, fold: Callable[[list[float]], float]) -> float | None:
        values = [getattr(each[name], field) for each in rounds if name in each]
        return round(fold(values), 4) if values else None

    def table(field: str, fold: Callable[[list[float]], float]) -> dict[str, float | None]:
        return {case.name: over(case.name, field, fold) for case in cases}

    resumed = table("resume_s", statistics.median)
    return {
        **{f"{name}_s": value for name, value in resumed.items()},
        "steps_lost": table("steps_lost", statistics.mean),
        "batch_kept": table("batch_kept", statistics.median),
        "less_a_step_s": table("less_a_step_s", statistics.median),
        "step_s": table("step_s", statistics.median),
        "all_s": {
            case.name: [round(each[case.name].resume_s, 4) for each in rounds if case.name in each]
            for case in cases
        },
        "failed": {case.name: sum(case.name not in each for each in rounds) for case in cases},
        "rounds": len(rounds),
    }


def print_table(cases: Sequence[Case], found: dict[str, Any]) -> None:
    names = ("trains on s", "least s", "most s", "step s", "steps lost", "batch kept")
    print("\n" + f"{'':50}" + "".join(f"{name:>13}" for name in names))
    for case in cases:
        signal_name = "killed" if case.number == signal.SIGKILL else "frozen"
        keys = ("step_s", "steps_lost", "batch_kept")
        every_s = found["all_s"][case.name]
        range_s = (min(every_s, default=None), max(every_s, default=None))
        values = [found[f"{case.name}_s"], *range_s, *(found[key][case.name] for key in keys)]
        cells = [f"{'-' if value is None else f'{value:.3f}':>13}" for value in values]
        print(f"{case.system + ', ' + signal_name + ', ' + case.says:50}" + "".join(cells))
    print("(real workers, real tensors; batch kept: tokens of a step afterwards / before)\n")


def set_up(venv: Path, package: str, skip: bool) -> str:
    """torchft's version in the environment, which is made first if it is not there."""
    python = venv / "bin" / "python"
    probe = "import torchft, importlib.metadata as m; print(m.version({!r}))"
    name = package.partition("==")[0]
    command = [str(python), "-W", "ignore", "-c", probe.format(name)]
    if not python.exists() or subprocess.run(command, capture_output=True, timeout=120).returncode:
        if skip:
            sys.exit(f"--skip-install: no {name} in {venv}; run once without it")
        print(f"installing {', '.join((*PACKAGES, package))} into {venv} (downloads)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
        (venv / ".gitignore").write_text("*\n")  # it may lie in a work tree
        install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES, package]
        subprocess.run(install, check=True, timeout=1800)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("torchft", "holdfast"), help="leave the other one out")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-torchft")
    parser.add_argument("--package", default="torchft-nightly==2026.10.26")
    parser.add_argument("--skip-install", action="store_true", help="never download")
    args = parser.parse_args(arguments)
    args.venv = args.venv.absolute()
    args.cases = [
        case
        for case in CASES
        if args.only in (None, case.system) and (not args.case or case.name in args.case)
    ]
    if args.rounds < 1 or not args.cases:
        parser.error("expected at least one round and one case")
    return args


def main() -> None:
    args = parse()
    instruction_set.prepare_script()  # for the peers as for Holdfast
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that trial ends what it started
    version = None
    if any(case.system == "torchft" for case in args.cases):
        version = set_up(args.venv, args.package, args.skip_install)
    rounds = [run_round(number, args.cases, args.venv) for number in range(args.rounds)]
    found = figures(args.cases, rounds) | {"torchft_version": version}
    print_table(args.cases, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
