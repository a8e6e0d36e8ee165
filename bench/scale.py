"""Control at scale: the real launcher against simulated workers, over real connections.

One process has all that a launcher has: coordinator, server, planner, event file. Others have the
machines, dozens in each: an agent and eight workers, one step a second (above 1,024 workers as many
fewer as there are more of them). They compute nothing. Then some workers are killed, and a whole
machine.

    .venv/bin/python bench/scale.py [--workers 64 256 1024 4096] [--steps 10] [--kills 3]

``cpu_share``: processor time of the launcher's process for a second of training, after the steps
in which all tell of all their operations. ``notice_to_proceed_s``: from the first notice of a
death until the new plan was sent to the last worker, the longest; ``machine_to_proceed_s``: the
same for eight workers of a machine at once; ``recovery_cpu_s``: processor time of the launcher for
a death, the most, which other work on the same cores changes least. ``memory_mb``: the most that
the launcher's process has had.
"""

import argparse
import contextlib
import cProfile
import json
import multiprocessing as mp
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.control.io.launcher import Launcher, RunRequest
from holdfast.control.io.server import Server
from holdfast.control.reconfigure.policies import OURS
from holdfast.errors import HoldfastError
from holdfast.job_reference import JobSource
from holdfast.observability import events
from holdfast.planner.warm_up import warm_up
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.spec import Access
from holdfast.schedule.operation import Shape
from scale_workers import simulate

STAGES, PER_PIPELINE = 8, 8  # and a machine has as many slots as there are stages
WORKERS_A_SECOND = 1024  # that end a step, at most: simulated ones share the cores
MOST_STEPS = 10_000
WARM_UP_STEPS = 17  # all tell of all operations in the first 16
START_LIMIT_S = 600.0
RECOVERY_LIMIT_S = 120.0
END_LIMIT_S = 10.0
MORE_DESCRIPTORS = 200
WIDTHS = (8, 11, 9, 11, 7, 7, 8, 8)
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    cpu_share: float
    notice_to_proceed_s: float
    machine_to_proceed_s: float
    recovery_cpu_s: float
    memory_mb: float
    step_s: float  # as the coordinator has seen it: it falls behind if it is above the next
    pace_s: float  # of the workers


# --- the launcher's process ---


class Elsewhere:
    """A starter: the workers are there already, and are told where to come to."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def start(self, access: Access, order: messages.StartWorkers) -> None:
        self._pipe.send(access)

    def ended(self) -> str | None:
        return None

    def stop(self) -> None:
        pass


def time_proceeds(sent_s: dict[int, float]) -> None:
    send = Server._send

    def timed(server: Server, connection: Connection, message: messages.Message) -> None:
        send(server, connection, message)
        if isinstance(message, messages.Proceed):
            sent_s[message.epoch] = time.monotonic()

    Server._send = timed  # type: ignore[assignment, method-assign]


def launch(pipe: Pipe, shape: Shape, folder: str, profile: str) -> None:
    """Events that the bench waits for go over the pipe; the last one is why it ended."""
    told = (events.RunStarted, events.StepFinished, events.Recovered, events.WorkerLost)
    sent_s: dict[int, float] = {}  # epoch -> when its last Proceed was sent

    def handle(event: events.Event) -> None:
        if isinstance(event, told):
            pipe.send(event)
        if isinstance(event, events.Recovered):
            pipe.send(sent_s[event.epoch])

    time_proceeds(sent_s)

    config = config_from(
        {
            "parallel": {
                "pipelines": shape.pipelines,
                "stages": shape.stages,
                "microbatches": shape.microbatches,
            },
            "train": {"steps": MOST_STEPS},
            "checkpoint": {"at_end": False},
            # Whoever is killed stays away: it is the others that are timed.
            "workers": {"restarts": 0, "replace": 0, "start_limit_s": START_LIMIT_S},
            "machines": {"count": shape.pipelines, "wait_s": START_LIMIT_S},
        }
    )  # fmt: skip
    job = JobSource("/job.py", "5a" * 32, "", "simulated")
    request = RunRequest(config=config, policies=OURS, job=job, run_dir=Path(folder) / "run")
    warm_up()
    launcher = Launcher(request, Elsewhere(pipe), handle=handle, warn=lambda line: None)
    signal.signal(signal.SIGTERM, lambda *_: (launcher.interrupt(), launcher.interrupt()))
    profiler = cProfile.Profile() if profile else contextlib.nullcontext()
    try:
        with profiler:
            launcher.run()
    except HoldfastError as why:
        pipe.send(str(why))
    if isinstance(profiler, cProfile.Profile):
        profiler.dump_stats(profile)
    os._exit(0)


# --- the bench ---


class Bench:
    def __init__(self, shape: Shape, num_processes: int, folder: str, profile: str) -> None:
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        self.pace_s = max(1.0, shape.pipelines * shape.stages / WORKERS_A_SECOND)
        asked = (other, shape, folder, profile)
        self._launcher = context.Process(target=launch, args=asked, daemon=True)
        machines = range(shape.pipelines)
        self._sides: list[Pipe] = []
        self._processes = [self._launcher]
        for number in range(num_processes):
            mine = machines[number::num_processes]
            side, other = context.Pipe()
            self._sides.append(side)
            args = (other, shape, mine, self.pace_s)
            process = context.Process(target=simulate, args=args, daemon=True)
            self._processes.append(process)
        for process in self._processes:
            process.start()

    def close(self) -> None:
        self._launcher.terminate()
        self._launcher.join(END_LIMIT_S)
        for process in self._processes:
            process.kill()
            process.join()

    def begin(self) -> None:
        """Everyone has a lane, and step 0 begins."""
        access = self._next(Access, START_LIMIT_S)
        for side in self._sides:
            side.send(access)
        self._next(events.RunStarted, START_LIMIT_S)
        self._all_say("ready")
        self._tell("begin", time.monotonic() + 0.5)

    def train(self, num_steps: int) -> tuple[float, float]:
        """So many steps: processor time a second of training, and seconds a step."""
        began_s, used_s = time.monotonic(), self._used_s()
        for _ in range(num_steps):
            step = self._next(events.StepFinished, RECOVERY_LIMIT_S)
        took_s = time.monotonic() - began_s
        self._last_step = step.step
        # By the pace of the workers: one that has fallen behind catches up at a higher one.
        return (self._used_s() - used_s) / (num_steps * self.pace_s), took_s / num_steps

    def kill(self, victim: WorkerId) -> tuple[float, float]:
        """In the middle of a step; from the first notice until the new plan is sent to the last.

        Also the processor time of that.
        """
        return self._recovered([victim], "kill", victim)

    def kill_machine(self, worker: WorkerId) -> tuple[float, float]:
        """That of this worker, as :meth:`kill`."""
        self._tell("where", worker)
        number, victims = max(side.recv() for side in self._sides)
        return self._recovered(victims, "kill machine", number, victims)

    def _recovered(self, victims: Sequence[WorkerId], *order: Any) -> tuple[float, float]:
        self._tell("freeze", self._last_step + 3)
        self._all_say("frozen")
        used_s = self._used_s()
        self._tell(*order)
        lost: set[str] = set()
        while True:  # those of a machine may be noticed one after the other
            found = self._next((events.Recovered, events.WorkerLost), RECOVERY_LIMIT_S)
            if isinstance(found, events.WorkerLost):
                lost.add(found.worker)
            elif lost >= set(map(str, victims)):
                break
        if len(lost) > len(victims):
            raise HoldfastError(f"lost {len(lost)} workers, but {len(victims)} were killed")
        sent_s = self._next(float, RECOVERY_LIMIT_S)
        return sent_s - found.notice_s, self._used_s() - used_s

    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self._launcher.pid}/status").read_text().splitlines()
        [most] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(most) / 1024

    def _used_s(self) -> float:
        words = Path(f"/proc/{self._launcher.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS_A_SECOND

    def _tell(self, *order: Any) -> None:
        for side in self._sides:
            side.send(order)

    def _all_say(self, word: str) -> None:
        for side in self._sides:
            if not side.poll(START_LIMIT_S):
                raise HoldfastError(f"the workers are not {word} after {START_LIMIT_S:g} s")
            assert side.recv() == word

    def _next(self, kinds: Any, limit_s: float) -> Any:
        deadline_s = time.monotonic() + limit_s
        while self._pipe.poll(max(0.0, deadline_s - time.monotonic())):
            found = self._pipe.recv()
            if isinstance(found, str):
                raise HoldfastError(found)
            if isinstance(found, kinds):
                return found
        raise HoldfastError(f"nothing for {limit_s:g} s; expected {kinds}")


@contextlib.contextmanager
def bench(shape: Shape, num_processes: int, profile: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        made = Bench(shape, num_processes, folder, profile)
        try:
            yield made
        finally:
            made.close()


def measure(num_workers: int, args: argparse.Namespace) -> Figures:
    pipelines = num_workers // STAGES
    shape = Shape(pipelines, STAGES, pipelines * PER_PIPELINE)
    with bench(shape, args.processes, args.profile) as run:
        run.begin()
        run.train(WARM_UP_STEPS)
        share, step_s = run.train(args.steps)
        deaths = []
        for number in range(args.kills):
            deaths.append(run.kill(WorkerId(number, (3 * number + 2) % STAGES)))
            run.train(2)
        machine_s, _ = run.kill_machine(WorkerId(pipelines - 1, 0))
        run.train(2)
        death_s, used_s = map(max, zip(*deaths, strict=True))
        return Figures(share, death_s, machine_s, used_s, run.memory_mb(), step_s, run.pace_s)


def allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=10, help="that processor time is taken of")
    parser.add_argument("--kills", type=int, default=3, help="of single workers, at least 1")
    parser.add_argument("--processes", type=int, default=2, help="that simulate workers")
    parser.add_argument("--profile", default="", metavar="FILE", help="of the launcher: cProfile")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all that was started is ended
    allow_descriptors(max(args.workers) + MORE_DESCRIPTORS)
    found: dict[str, Figures] = {}
    heads = ("workers", "of a core", "death s", "machine s", "CPU s", "MB", "step s", "pace s")
    print("".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS, strict=True)))
    for number in args.workers:
        try:
            one = found[str(number)] = measure(number, args)
        except HoldfastError as why:
            print(f"{number:8}  {str(why)[:200]}", flush=True)
            continue
        print(
            f"{number:8}{one.cpu_share:11.3f}{one.notice_to_proceed_s:9.3f}"
            f"{one.machine_to_proceed_s:11.3f}{one.recovery_cpu_s:7.2f}{one.memory_mb:7.0f}"
            f"{one.step_s:8.2f}{one.pace_s:8.2f}",
            flush=True,
        )
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print("(real launcher and connections, simulated machines, a step every pace s;")
    print(f"load of this machine in the last 1, 5 and 15 minutes: {load})\n")
    names = [one.name for one in fields(Figures) if one.name not in ("step_s", "pace_s")]
    print(json.dumps({n: {k: round(getattr(f, n), 4) for k, f in found.items()} for n in names}))
    if len(found) < len(args.workers):
        sys.exit(1)


if __name__ == "__main__":
    main()
