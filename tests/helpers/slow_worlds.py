"""A simulated fleet that reports its steps: noise, slow workers, links, machines, ragged work."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.cluster import WorkerId, parse_worker
from holdfast.detection.diagnosis import Cause, Diagnosis, Over, Suspicion
from holdfast.detection.live.watcher import Watcher
from holdfast.detection.observation import OpTime, StepObservation, Transfer

OP_S = {"F": 0.010, "B": 0.010, "W": 0.010}
MESSAGE_S = {"pipeline": 0.0004, "reduction": 0.001, "probe": 0.0008}


class Slow(NamedTuple):
    """``who``: a worker, a machine, a link "0.0-0.1", or one direction of it "0.0>0.1"."""

    who: str
    first: int
    last: int = 10**9
    factor: float = 1.0
    delay_s: float = 0.0  # of a link
    cpu: str = "rises"  # with the time; or "flat": it lacks processor time
    benchmarked: bool = True  # its benchmark shows it, too


@dataclass
class World:
    pipelines: int = 2
    stages: int = 2
    microbatches: int = 4
    slow: Sequence[Slow] = ()
    noise: float = 0.03  # of each worker's step
    common: float = 0.0  # of all workers' step
    op_noise: float = 0.02
    machine_of: Callable[[WorkerId], str] = lambda worker: "a"
    size_of: Callable[[int, int], int] = lambda step, microbatch: 64
    stage_factor: Callable[[int], float] = lambda stage: 1.0
    worker_factor: dict[str, float] = field(default_factory=dict)  # natural, no fault
    stage_of: Callable[[WorkerId, int], int] = lambda worker, step: worker.stage
    idle: Callable[[WorkerId, int], bool] = lambda worker, step: False
    ahead_s: Callable[[WorkerId, int], float] = lambda worker, step: 0.0  # of its clock
    cpu_share: float = 0.95
    answers: bool = True  # benchmarks that are asked for are run
    seed: int = 1

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.workers = [WorkerId(d, s) for d in range(self.pipelines) for s in range(self.stages)]
        self.asked = Suspicion((), ())
        self.num_asked = 0

    def watcher(self, settings=None) -> Watcher:
        return Watcher({worker: self.machine_of(worker) for worker in self.workers}, settings)

    def factor(self, worker: WorkerId, step: int, *, of: Callable[[Slow], bool] = bool) -> float:
        names = (str(worker), self.machine_of(worker))
        return math.prod(
            s.factor for s in self.slow if s.who in names and s.first <= step <= s.last and of(s)
        )

    def report(self, worker: WorkerId, step: int, common: float) -> StepObservation:
        stage = self.stage_of(worker, step)
        level = self.factor(worker, step) * self.worker_factor.get(str(worker), 1.0)
        level *= math.exp(self.random.gauss(0, self.noise) + common)
        cpu = level / self.factor(worker, step, of=lambda s: s.cpu == "flat")
        ops = []
        for m in range(0 if self.idle(worker, step) else self.microbatches):
            size = self.size_of(step, worker.pipeline * self.microbatches + m)
            for kind, base_s in OP_S.items():
                healthy_s = base_s * (0.2 + 0.8 * size / 64) * self.stage_factor(stage)
                jitter = math.exp(self.random.gauss(0, self.op_noise))
                took_s, cpu_s = healthy_s * level * jitter, healthy_s * cpu * self.cpu_share
                ops.append(OpTime(kind, m, 0.0, took_s, cpu_s, size))
        return StepObservation(worker, stage, step, tuple(ops), self.transfers(worker, stage, step))

    def transfers(self, to: WorkerId, stage: int, step: int) -> tuple[Transfer, ...]:
        rows = []
        for source in self.workers:
            away = abs(self.stage_of(source, step) - stage)
            if source == to or self.idle(to, step) or self.idle(source, step):
                continue
            if away == 1 and source.pipeline == to.pipeline:
                rows.append(self.transfer(source, to, "pipeline", 2 * self.microbatches, step))
            if away == 0:
                rows.append(self.transfer(source, to, "reduction", 2, step))
        for one, other in self.asked.links if self.answers else ():
            if to in (one, other):
                rows.append(self.transfer(one if to == other else other, to, "probe", 3, step))
        return tuple(rows)

    def transfer(self, source: WorkerId, to: WorkerId, kind: str, count: int, step: int):
        names = (f"{source}-{to}", f"{to}-{source}", f"{source}>{to}")
        hit = [s for s in self.slow if s.who in names and s.first <= step <= s.last]
        moved_s = MESSAGE_S[kind] * math.exp(self.random.gauss(0, 0.2))
        moved_s = moved_s * math.prod(s.factor for s in hit) + sum(s.delay_s for s in hit)
        moved_s += self.ahead_s(to, step) - self.ahead_s(source, step)
        return Transfer(source, kind, count, 1000 * count, moved_s)

    def benchmark(self, watcher: Watcher, worker: WorkerId, step: int) -> None:
        level = self.factor(worker, step, of=lambda s: s.benchmarked)
        level *= self.worker_factor.get(str(worker), 1.0) * math.exp(self.random.gauss(0, 0.02))
        watcher.probed(worker, step, 0.005 * level, 0.005 * level)

    def run(self, watcher: Watcher, num_steps: int, first: int = 0) -> "Story":
        story = Story()
        if first == 0 and self.answers:
            for worker in self.workers:
                self.benchmark(watcher, worker, 0)
        for step in range(first, first + num_steps):
            common = self.random.gauss(0, self.common)
            for worker in self.workers:
                watcher.observe(self.report(worker, step, common))
            for worker in self.asked.workers if self.answers else ():
                self.benchmark(watcher, worker, step)
            self.asked = Suspicion((), ())
            for outcome in watcher.conclude(step):
                story.append((step, outcome))
                if isinstance(outcome, Suspicion):
                    self.asked = outcome
                    self.num_asked += 1
        return story


class Story(list):
    """(step, outcome) as told."""

    def diagnoses(self, cause: Cause | None = None) -> list[tuple[int, Diagnosis]]:
        told = [(step, d) for step, d in self if isinstance(d, Diagnosis)]
        return [(step, d) for step, d in told if cause in (None, d.cause)]

    def faults(self) -> list[tuple[int, Diagnosis]]:
        """Without the model's and the data's imbalance."""
        causes = (Cause.COMPUTE, Cause.LINK, Cause.MACHINE)
        return [(step, d) for step, d in self.diagnoses() if d.cause in causes]

    def overs(self) -> list[tuple[int, Over]]:
        return [(step, d) for step, d in self if isinstance(d, Over)]


def w(name: str) -> WorkerId:
    return parse_worker(name)
