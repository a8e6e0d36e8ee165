"""What it costs a step that the logs of each machine are copied to another one.

Two machines (agents on two addresses of loopback, each with a directory of its own and none that
sees the run's), a GPT of 4.2 million parameters at 2x2, boundary logs: recovery.log_copies=0 and 1
in turns. A run whose logs were not copied as it was told ends the measurement.

    .venv/bin/python bench/log_copies.py [--rounds 4] [--steps 40]
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from holdfast.observability.events import StepFinished
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.storage.run_paths import LOG_COPIES

JOB = Path(__file__).with_name("gpt4m.py")
HOLDFAST = [sys.executable, "-m", "holdfast"]
MACHINES = {"m0": "127.0.0.2", "m1": "127.0.0.3"}  # logs are copied from one address to another
WARM_UP_STEPS, LIMIT_S, PAUSE_S = 5, 300.0, 0.5
SETTINGS = ["recovery.log=boundary", "checkpoint.at_end=false"]


def step_s(folder: Path, copies: int, steps: int) -> float:
    """The median of a run."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    layout = ["--pipelines", "2", "--stages", "2", "--microbatches", "8", "--steps", str(steps)]
    layout += ["--machines", str(len(MACHINES)), "--listen", f"127.0.0.1:{port}"]
    for setting in (*SETTINGS, f"recovery.log_copies={copies}"):
        layout += ["--set", setting]
    run_dir, ticket = folder / "run", folder / "run.ticket"
    with ExitStack() as started:

        def start(*words: str, cache: str) -> subprocess.Popen[bytes]:
            environment = os.environ | {"HOLDFAST_CACHE": str(folder / cache)}
            log = started.enter_context(open(folder / f"{cache}.log", "wb"))
            process = subprocess.Popen([*HOLDFAST, *words], env=environment, stdout=log, stderr=log)
            started.callback(ended, process)
            return process

        train = start("train", str(JOB), "--run-dir", str(run_dir), *layout, cache="train")
        deadline_s = time.monotonic() + LIMIT_S
        while not ticket.exists() and time.monotonic() < deadline_s and train.poll() is None:
            time.sleep(0.05)
        for machine, host in MACHINES.items():
            (folder / machine).mkdir(mode=0o700)
            words = ["--ticket", str(ticket), "--slots", "2", "--name", machine, "--listen", host]
            start("agent", *words, cache=machine)
        copied = most_copied(train, folder)
        if train.returncode != 0:
            sys.exit((folder / "train.log").read_text())
    if any(bool(num_bytes) != bool(copies) for num_bytes in copied.values()):
        sys.exit(f"log_copies={copies}, but machines have copied so many bytes: {copied}")
    finished = [e for e in read_events(run_dir / EVENTS_FILE) if isinstance(e, StepFinished)]
    return statistics.median(event.took_s for event in finished[WARM_UP_STEPS:])


def most_copied(train: subprocess.Popen[bytes], folder: Path) -> dict[str, int]:
    """Bytes that lay on each machine at most until the run had ended: it removes them."""
    copied = dict.fromkeys(MACHINES, 0)
    deadline_s = time.monotonic() + LIMIT_S
    while train.poll() is None:
        if time.monotonic() > deadline_s:
            sys.exit(f"no end of the run after {LIMIT_S:g} s")
        for machine, most in copied.items():
            found = (folder / machine).glob(f"holdfast-*/*/log/{LOG_COPIES}/*/*/segment-*.log")
            copied[machine] = max(most, sum(size_of(path) for path in found))
        time.sleep(PAUSE_S)
    return copied


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the run is over
        return 0


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    found: dict[int, list[float]] = {0: [], 1: []}
    for number in range(args.rounds):
        for copies in (0, 1) if number % 2 else (1, 0):
            with tempfile.TemporaryDirectory() as folder:
                found[copies].append(step_s(Path(folder), copies, args.steps))
            print(f"log_copies={copies}: {1e3 * found[copies][-1]:.1f} ms a step", flush=True)
    plain_s, copied_s = (statistics.median(found[copies]) for copies in (0, 1))
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"load of this machine in the last 1, 5 and 15 minutes: {load}")
    names = {"step_ms": 1e3 * plain_s, "copied_step_ms": 1e3 * copied_s}
    ratio = {"log_copies_cost": copied_s / plain_s - 1}
    print(json.dumps({name: round(value, 4) for name, value in (names | ratio).items()}))


if __name__ == "__main__":
    main()
