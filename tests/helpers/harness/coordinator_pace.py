"""How long operations, transfers and benchmarks of scripted workers take, as they report it.

Knows lanes only; what the coordinator makes of the times is not known here.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId, parse_worker
from holdfast.protocol import messages
from holdfast.protocol.records import OperationTime, Transfers
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Schedule

OP_S, TRANSFER_S, BENCHMARK_S = 0.01, 0.0005, 0.005


@dataclass
class Pace:
    """How long everything takes, for a world whose reports tell of operations."""

    slow: dict[str, float] = field(default_factory=dict)  # worker -> factor
    links: dict[tuple[str, str], float] = field(default_factory=dict)  # sorted -> seconds more
    noise: float = 0.01
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    probes: list[tuple[str, str]] = field(default_factory=list)  # sent and not yet told of

    def operations(self, name: str, lane: Iterable[Op]) -> list[OperationTime]:
        found, at_s = [], 0.0
        for op in lane:
            took_s = self._about(OP_S * (2 if op.kind is Kind.BW else 1)) * self.slow.get(name, 1.0)
            found.append(OperationTime(str(op), at_s, at_s + took_s, took_s, 64))
            at_s += took_s
        return found

    def transfers(self, name: str, schedule: Schedule) -> list[Transfers]:
        """What comes in from neighbour stages, from other holders, and from benchmarks."""
        worker = parse_worker(name)
        counts: dict[tuple[str, str], int] = {}
        for source, kind in _incoming(worker, schedule):
            counts[str(source), kind] = counts.get((str(source), kind), 0) + 1
        for source, to in [pair for pair in self.probes if pair[1] == name]:
            self.probes.remove((source, to))
            counts[source, "probe"] = 3
        return [
            Transfers(source, kind, count, 100 * count, self._moved_s(source, name))
            for (source, kind), count in sorted(counts.items())
        ]

    def step_s(self, schedule: Schedule) -> float:
        """Nobody waits for anybody but for messages."""
        longest_s = 0.0
        for worker, lane in schedule.lanes.items():
            took_s = sum(
                end_s - start_s for _, start_s, end_s, *_ in self.operations(str(worker), lane)
            )
            incoming = _incoming(worker, schedule)
            took_s += sum(self._moved_s(str(source), str(worker)) for source, _ in incoming)
            longest_s = max(longest_s, took_s)
        return longest_s

    def benchmark(self, name: str, step: int) -> messages.Probed:
        took_s = self._about(BENCHMARK_S) * self.slow.get(name, 1.0)
        return messages.Probed(worker=name, step=step, wall_s=took_s, cpu_s=took_s)

    def _moved_s(self, one: str, other: str) -> float:
        pair = (min(one, other), max(one, other))
        return self._about(TRANSFER_S) + self.links.get(pair, 0.0)

    def _about(self, seconds: float) -> float:
        return seconds * (1 + self.noise * self.dice.uniform(-1, 1))


def _incoming(worker: WorkerId, schedule: Schedule) -> Iterator[tuple[WorkerId, str]]:
    for op in schedule.lanes[worker]:
        if op.kind is Kind.R:
            yield from ((w, "reduction") for w in schedule.holders(op.stage) if w != worker)
        elif op.kind is Kind.F and op.stage > 0:
            yield schedule.route(op.stage - 1, op.microbatch), "pipeline"
        elif op.kind in (Kind.B, Kind.BW) and op.stage < schedule.shape.last_stage:
            yield schedule.route(op.stage + 1, op.microbatch), "pipeline"
