"""Four machines train a tiny GPT while one of them dies, and the coordinator, and both come back.

The machines are namespaces of this one, with their own network, name, clock and /tmp. Where those
are not to be had they are four agents on loopback, each with its own directories.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from helpers.hosts import Host, hosts, why_not
from holdfast.observability import events
from holdfast.observability.summary import SUMMARY_FILE

NUM_MACHINES, SLOTS, PORT = 4, 2, 40621
LAYOUT = ["--pipelines", "4", "--stages", "2", "--microbatches", "8", "--steps", "60"]
HOLDFAST = [sys.executable, "-m", "holdfast"]
LIMIT_S = 150.0
ROOT = Path(__file__).parents[1]


class Box(Protocol):
    """One machine."""

    name: str
    address: str

    def start(self, words: Sequence[str], log: str) -> subprocess.Popen[bytes]: ...

    def path(self, name: str) -> Path:
        """A file of the machine, as seen from here."""
        ...

    def own(self, name: str) -> str:
        """The same, as the machine itself calls it."""
        ...

    def die(self) -> None: ...

    def boot(self) -> None: ...


class Namespaced:
    def __init__(self, host: Host, folder: Path) -> None:
        self._host, self._folder = host, folder
        self.name, self.address = host.name, host.ipv4

    def start(self, words: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        return self._host.start([*HOLDFAST, *words], self._folder, log).process

    def path(self, name: str) -> Path:
        return self._host.file(self.own(name))

    def own(self, name: str) -> str:
        return f"/tmp/{name}"

    def die(self) -> None:
        self._host.power_off(silently=True)

    def boot(self) -> None:
        self._host.network.power_on(self._host)


class OnLoopback:
    address = "127.0.0.1"

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self._home = folder / name
        self._running: list[subprocess.Popen[bytes]] = []
        self.boot()

    def start(self, words: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{log}.out", "wb") as out:
            own = os.environ | {"HOLDFAST_CACHE": str(self._home / "cache")}
            process = subprocess.Popen(
                [*HOLDFAST, *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=own,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def path(self, name: str) -> Path:
        return self._home / name

    def own(self, name: str) -> str:
        return str(self._home / name)

    def die(self) -> None:
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
        shutil.rmtree(self._home)

    def boot(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)


@contextmanager
def machines(folder: Path) -> Iterator[list[Box]]:
    reason = why_not()
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


class Cluster:
    def __init__(self, boxes: Sequence[Box], job: Path) -> None:
        self._boxes, self._first = boxes, boxes[0]
        self._first.path("job.py").write_text(job.read_text())
        own = ["--machines", str(NUM_MACHINES), "--listen", f"{self._first.address}:{PORT}"]
        words = ["train", self._first.own("job.py"), *LAYOUT, "--run-dir", self._first.own("run")]
        words += [*own, "--set", "workers.heartbeat_timeout_s=3"]
        self.train = self._first.start(words, "train")
        ticket = self._first.path("run.ticket")
        wait_until(ticket.exists, "the ticket")
        self._ticket = ticket.read_text()
        for box in boxes:
            self.add(box)

    def add(self, box: Box) -> None:
        path = box.path("ticket")
        path.write_text(self._ticket)
        path.chmod(0o600)
        words = ["agent", "--ticket", box.own("ticket"), "--slots", str(SLOTS)]
        words += ["--name", box.name, "--work-dir", box.own("work")]
        box.start(words, f"agent-{box.name}-{time.monotonic_ns()}")

    def kill_coordinator(self) -> None:
        pid = self.train.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]) if children and self._is_wrapped else pid, signal.SIGKILL)
        self.train.wait()

    @property
    def _is_wrapped(self) -> bool:
        return isinstance(self._first, Namespaced)

    def resume(self) -> None:
        self.train = self._first.start(["train", "--resume", self._first.own("run")], "resumed")

    def num(self, kind: type[object]) -> int:
        path = self._first.path(f"run/{events.EVENTS_FILE}")
        found = events.read_events(path) if path.exists() else []
        return sum(isinstance(event, kind) for event in found)

    def wait_for(self, kind: type[object], number: int = 1) -> None:
        wait_until(lambda: self.num(kind) >= number, kind.__name__)

    def sha256(self) -> str:
        if self.train.wait(LIMIT_S):
            sys.exit("demo-cluster: the run failed; its output is in runs/demo-cluster")
        summary = json.loads(self._first.path(f"run/{SUMMARY_FILE}").read_text())
        return str(summary["parameters_sha256"])


def main() -> int:
    folder = ROOT / "runs" / "demo-cluster"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = ROOT / "src" / "holdfast" / "models" / "tiny_gpt.py"
    started_s = time.monotonic()
    say("--- undisturbed, on one machine")
    calm = folder / "undisturbed"
    own_job = folder / "tiny_gpt.py"
    own_job.write_text(job.read_text())
    words = ["train", str(own_job), *LAYOUT, "--run-dir", str(calm)]
    with open(folder / "undisturbed.out", "wb") as out:
        subprocess.run([*HOLDFAST, *words], check=True, stdout=out, stderr=subprocess.STDOUT)
    expected = json.loads((calm / SUMMARY_FILE).read_text())["parameters_sha256"]
    say(f"sha256 {expected}\n--- on four machines")
    with machines(folder) as boxes:
        cluster = Cluster(boxes, job)
        cluster.wait_for(events.StepFinished, 3)
        say(f"{cluster.num(events.WorkerReady)} workers train on {len(boxes)} machines")
        boxes[3].die()
        cluster.wait_for(events.MachineLost)
        cluster.wait_for(events.Recovered)
        say(f"machine {boxes[3].name} died: the others go on, with one plan for what is left")
        cluster.kill_coordinator()
        say("the coordinator was killed; workers and agents wait for another")
        cluster.resume()
        cluster.wait_for(events.TookOver)
        say("another coordinator has taken over, in the same step")
        boxes[3].boot()
        cluster.add(boxes[3])
        cluster.wait_for(events.WorkerJoined, 2)
        say(f"machine {boxes[3].name} is back, and its workers have joined")
        found = cluster.sha256()
    say(f"sha256 {found}")
    same = found == expected
    took_s = time.monotonic() - started_s
    say(f"{'the same bits' if same else 'OTHER BITS'}, after {took_s:.0f} s")
    return 0 if same else 1


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit(
                f"demo-cluster: waited {LIMIT_S:g} s in vain for {what}; see runs/demo-cluster"
            )
        time.sleep(0.05)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
