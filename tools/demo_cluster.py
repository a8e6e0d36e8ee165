"""Four machines train a tiny GPT while one of them dies, and the coordinator, and both come back.

The machines are namespaces of this one, with their own network, name, clock and /tmp. Where those
are not to be had, or with --loopback, they are four agents on loopback with their own directories.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.hosts import Host, Program, hosts, why_not  # noqa: E402
from holdfast.observability import events  # noqa: E402
from holdfast.observability.summary import SUMMARY_FILE  # noqa: E402

NUM_MACHINES, SLOTS, DIES = 4, 2, 3
HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 300.0  # of one wait: on a busy machine it takes long until all have loaded torch
# For a sample, until all is shown that is to be shown; slower while a machine boots.
PACE_S, BOOT_PACE_S = 0.02, 0.1
OWN_FOLDER = ROOT / "runs" / "demo-cluster"
MARK = ".demo-cluster"  # in a folder that the next demo may empty
# Samples come late as long as there is a file that says so.
JOB = """\
import dataclasses
import pathlib
import time

from holdfast.models import tiny_gpt
from holdfast.models.text import CharText


class Paced(CharText):
    def __getitem__(self, index):
        try:
            time.sleep(float(pathlib.Path({pace!r}).read_text()))
        except FileNotFoundError:
            pass
        return super().__getitem__(index)


def job():
    return dataclasses.replace(tiny_gpt.job(), data=Paced(tiny_gpt.CONTEXT))
"""


class DemoFailed(Exception):
    """In one line."""


# --- machines ---


class Box(Protocol):
    """One machine."""

    name: str
    address: str

    @property
    def is_on(self) -> bool: ...

    def start(self, words: Sequence[str], log: str) -> "Command": ...

    def path(self, name: str) -> Path:
        """A file of the machine, as seen from here."""
        ...

    def own(self, name: str) -> str:
        """The same, as the machine itself calls it."""
        ...

    def die(self) -> None: ...

    def boot(self) -> None: ...


class Command(Protocol):
    """That runs on a machine."""

    def kill(self) -> None: ...

    def code(self) -> int | None:
        """None: it runs."""
        ...


class InHost:
    def __init__(self, program: Program) -> None:
        self._program = program

    def kill(self) -> None:
        self._program.signal(signal.SIGKILL)
        self._program.wait(LIMIT_S)

    def code(self) -> int | None:
        return self._program.process.poll()


class Namespaced:
    def __init__(self, host: Host, folder: Path) -> None:
        self._host, self._folder = host, folder
        self.name, self.address = host.name, host.ipv4

    @property
    def is_on(self) -> bool:
        return self._host.is_on

    def start(self, words: Sequence[str], log: str) -> Command:
        return InHost(self._host.start([*HOLDFAST, *words], self._folder, log))

    def path(self, name: str) -> Path:
        return self._host.file(self.own(name))

    def own(self, name: str) -> str:
        return f"/tmp/{name}"

    def die(self) -> None:
        self._host.power_off(silently=True)

    def boot(self) -> None:
        self._host.network.power_on(self._host)


class OwnProcess:
    def __init__(self, words: Sequence[str], output: Path, environment: dict[str, str]) -> None:
        with open(f"{output}.out", "wb") as out, open(f"{output}.err", "wb") as errors:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def code(self) -> int | None:
        return self._process.poll()


class OnLoopback:
    """Its workers end with their agent, as with a machine."""

    address = "127.0.0.1"

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder, self._home = name, folder, folder / name
        self._running: list[OwnProcess] = []
        self.boot()

    @property
    def is_on(self) -> bool:
        return self._home.exists()

    def start(self, words: Sequence[str], log: str) -> Command:
        own = os.environ | {"HOLDFAST_CACHE": str(self._home / "cache")}
        self._running.append(OwnProcess([*HOLDFAST, *words], self._folder / log, own))
        return self._running[-1]

    def path(self, name: str) -> Path:
        return self._home / name

    def own(self, name: str) -> str:
        return str(self._home / name)

    def die(self) -> None:
        for process in self._running:
            process.kill()
        self._running.clear()
        shutil.rmtree(self._home, ignore_errors=True)

    def boot(self) -> None:
        self._home.mkdir(mode=0o700)


@contextmanager
def machines(folder: Path, *, loopback: bool) -> Iterator[list[Box]]:
    reason = "as you wish" if loopback else why_not()
    if not reason:
        with hosts(NUM_MACHINES) as found:
            yield [Namespaced(host, folder) for host in found]
        return
    say(f"four agents on loopback instead of four machines: {reason}")
    boxes = [OnLoopback(f"m{number}", folder) for number in range(NUM_MACHINES)]
    try:
        yield [*boxes]
    finally:
        for box in boxes:
            box.die()


# --- a run over them ---


class Cluster:
    """The first machine coordinates."""

    def __init__(self, boxes: Sequence[Box], folder: Path, layout: Sequence[str]) -> None:
        self._boxes, self._first, self._folder = boxes, boxes[0], folder
        first = self._first
        # In one place for all of them, if they are of one file system.
        self._pace = "/tmp/pace" if isinstance(first, Namespaced) else str(folder / "pace")
        job = first.path("job/paced_gpt.py")
        job.parent.mkdir()
        job.write_text(JOB.format(pace=self._pace))
        words = ["train", first.own("job/paced_gpt.py"), *layout, "--run-dir", first.own("run")]
        words += ["--machines", str(len(boxes)), "--listen", f"{first.address}:{free_port()}"]
        words += ["--set", "workers.heartbeat_timeout_s=3", "--set", "checkpoint.every_steps=20"]
        self._log = "train"
        self._train = first.start(words, self._log)
        self.wait_until(first.path("run.ticket").exists, "the ticket")
        for number in range(len(boxes)):
            self.add(number)

    def add(self, number: int) -> None:
        box, path = self._boxes[number], self._boxes[number].path("ticket")
        path.write_text(self._first.path("run.ticket").read_text())
        path.chmod(0o600)
        words = ["agent", "--ticket", box.own("ticket"), "--slots", str(SLOTS), "--name", box.name]
        box.start(words, f"agent-{box.name}-{time.monotonic_ns()}")

    def pace(self, seconds: float) -> None:
        """0: as fast as they can."""
        for box in self._boxes:
            if not box.is_on:
                continue
            path = box.path("pace") if isinstance(box, Namespaced) else Path(self._pace)
            if seconds:
                path.write_text(str(seconds))
            else:
                path.unlink(missing_ok=True)

    def kill_coordinator(self) -> None:
        self._train.kill()

    def resume(self) -> None:
        self._log = "resumed"
        self._train = self._first.start(["train", "--resume", self._first.own("run")], self._log)

    def all_of(self, kind: type[events.Event]) -> list[events.Event]:
        path = self._first.path(f"run/{events.EVENTS_FILE}")
        found = events.read_events(path) if path.exists() else []
        return [event for event in found if isinstance(event, kind)]

    def wait_for(self, kind: type[events.Event], number: int = 1) -> list[events.Event]:
        what = f"{number} {kind.__name__}" if number > 1 else kind.__name__
        self.wait_until(lambda: len(self.all_of(kind)) >= number, what)
        return self.all_of(kind)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            if self._train.code() is not None:
                raise DemoFailed(f"the run ended while it was waited for {what}: {self._told}")
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"waited {LIMIT_S:g} s in vain for {what}")
            time.sleep(0.05)

    def sha256(self) -> str:
        deadline_s = time.monotonic() + LIMIT_S
        while self._train.code() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if self._train.code() != 0:
            raise DemoFailed(f"the run failed: {self._told}")
        return sha256_of(self._first.path("run"))

    @property
    def _told(self) -> str:
        lines = (self._folder / f"{self._log}.err").read_text().splitlines()
        return lines[-1] if lines else "it said nothing"


# --- what is shown ---


def undisturbed(folder: Path, layout: Sequence[str]) -> str:
    job, run_dir = folder / "paced_gpt.py", folder / "undisturbed"
    job.write_text(JOB.format(pace=str(folder / "nothing")))
    with open(folder / "undisturbed.out", "wb") as out:
        words = [*HOLDFAST, "train", str(job), *layout, "--run-dir", str(run_dir)]
        words += ["--set", "workers.kind=threads"]  # the quickest way, and the same bits
        done = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise DemoFailed(f"the undisturbed run failed with exit code {done.returncode}")
    return sha256_of(run_dir)


def disturbed(boxes: Sequence[Box], folder: Path, layout: Sequence[str]) -> str:
    cluster, dies = Cluster(boxes, folder, layout), boxes[DIES]
    cluster.pace(PACE_S)
    cluster.wait_for(events.StepFinished, 3)
    ready = len(cluster.all_of(events.WorkerReady))
    say(f"{ready} workers train on {len(boxes)} machines")
    dies.die()
    cluster.wait_for(events.MachineLost)
    cluster.wait_for(events.Recovered)
    say(f"machine {dies.name} died with its workers: the others go on, in the same step")
    cluster.kill_coordinator()
    say(f"the coordinator on {boxes[0].name} was killed: workers and agents wait for another")
    cluster.resume()
    [took_over, *_] = cluster.wait_for(events.TookOver)
    assert isinstance(took_over, events.TookOver)
    workers = len(took_over.workers)
    say(f"another coordinator has taken over; {workers} workers go on where they were")
    joined = len(cluster.all_of(events.WorkerJoined))
    cluster.pace(BOOT_PACE_S)
    dies.boot()
    cluster.add(DIES)
    cluster.wait_for(events.WorkerJoined, joined + SLOTS)
    say(f"machine {dies.name} is back, and {SLOTS} workers have joined on it")
    cluster.pace(0)
    found = cluster.sha256()
    if back := len(cluster.all_of(events.WentBack)):
        say(f"{back} times all went back to a checkpoint")
    return found


def emptied(folder: Path) -> bool:
    """False: what is there is not of an earlier demo."""
    is_own = folder == OWN_FOLDER or (folder / MARK).exists()
    if folder.exists() and not is_own and (not folder.is_dir() or any(folder.iterdir())):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return True


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=OWN_FOLDER)
    args = parser.parse_args(words)
    folder = args.folder.absolute()
    if not emptied(folder):
        sys.stderr.write(
            f"demo-cluster: --folder {folder}: is there already, and of no earlier demo; choose "
            "another one\n"
        )
        return 2
    layout = ["--pipelines", "4", "--stages", "2", "--microbatches", "8"]
    layout += ["--steps", str(args.steps)]
    started_s = time.monotonic()
    try:
        say("--- undisturbed, on one machine")
        expected = undisturbed(folder, layout)
        say(f"--- over four machines, after {time.monotonic() - started_s:.0f} s")
        with machines(folder, loopback=args.loopback) as boxes:
            found = disturbed(boxes, folder, layout)
    except DemoFailed as why:
        say(f"demo-cluster: {why}; all output is in {folder}")
        return 1
    say(f"--- after {time.monotonic() - started_s:.0f} s")
    say(f"undisturbed    sha256 {expected}\nfour machines  sha256 {found}")
    say("the same bits" if found == expected else "OTHER BITS")
    return 0 if found == expected else 1


def sha256_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / SUMMARY_FILE).read_text())["parameters_sha256"])


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
