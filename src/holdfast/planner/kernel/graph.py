"""Operations of a step as integer tables: what the kernel works on, and how to read it back.

Knows routes and durations; nothing of policies, periods or how routes are found.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.arrays import Flags, Ints
from holdfast.planner.kernel import kernel as k
from holdfast.schedule.operation import Kind

# Durations become whole ticks, memory whole grains: integers are the same everywhere. The
# longest normal operation is 2^20 ticks.
_TICK_BITS, _GRAIN_BITS, _GRAIN_SLACK = 20, 48, 1 << 12
KINDS = (Kind.F, Kind.B, Kind.W, Kind.BW)


@dataclass(frozen=True)
class Hosts:
    """One entry a (worker, stage); the hosts of a worker are neighbours in the list."""

    worker: Ints
    stage: Ints
    durations: Ints  # [F, B, W, BW][host], in ticks
    limit: Ints  # in grains
    held: Ints  # a micro-batch from F to B
    pending: Ints  # ... from B to W

    @property
    def num_workers(self) -> int:
        return int(self.worker[-1]) + 1

    @property
    def shared(self) -> bool:
        """Whether some worker has two stages."""
        return len(self.worker) > self.num_workers


@dataclass(frozen=True)
class OperationGraph:
    """``kind``, ``stage`` and ``microbatch`` say what each operation is."""

    hosts: Hosts
    ops: Ints
    kind: Ints  # index in KINDS
    stage: Ints
    microbatch: Ints
    num_ops: int  # that are to be run; a fused W is not


@dataclass(frozen=True)
class Units:
    """Seconds a tick, and the caller's memory unit a grain."""

    tick_s: float
    grain: float

    @classmethod
    def of(cls, longest_s: float, largest_limit: float) -> "Units":
        return cls(longest_s / (1 << _TICK_BITS), largest_limit / (1 << _GRAIN_BITS))

    def ticks(self, seconds: npt.ArrayLike) -> Ints:
        return np.rint(np.asarray(seconds, np.float64) / self.tick_s).astype(np.int64)

    def grains(self, amount: npt.ArrayLike) -> Ints:
        return np.rint(np.asarray(amount, np.float64) / self.grain).astype(np.int64)

    def limit(self, amount: npt.ArrayLike) -> Ints:
        """With slack for the rounding of what is counted against it."""
        return self.grains(amount) + _GRAIN_SLACK


@dataclass(frozen=True)
class Template:
    """A step to be put in order: its routes, and what a period is made of besides operations.

    Several like pipelines are one here.
    """

    hosts: Hosts
    route: Ints  # [micro-batch, stage]: the host
    hops: Ints  # [micro-batch, stage]: ticks to the next stage, and back
    turns: Ints  # which micro-batch of its pipeline each is
    tails: Ints  # [stage]: ticks from the last operation to the next step
    fusing_pays: bool
    staggered: bool

    @property
    def num_stages(self) -> int:
        return int(self.route.shape[1])

    @property
    def num_turns(self) -> int:
        return int(self.turns.max()) + 1

    @property
    def forward(self) -> int:
        """Ticks of the shortest forward."""
        return int(self.hosts.durations[0].min())

    @property
    def hop(self) -> int:
        return int(self.hops.max())

    def graph(self, fused: Flags) -> OperationGraph:
        """``fused``: [micro-batch, stage] whose backward is done in one go."""
        return step_graph(self.route, self.hosts, self.hops, fused)

    def fused_turns(self, edges: Ints) -> Flags:
        """``edges``: [first, last + 1][stage] of the turns to be fused."""
        turns = self.turns[:, None]
        mask: Flags = (turns >= edges[0]) & (turns < edges[1])
        return mask


def step_graph(route: Ints, hosts: Hosts, hops: Ints, fused: Flags) -> OperationGraph:
    """Every F, B and W of a step. ``route[m, s]``: the host; ``hops[m, s]``: s to s + 1 and back.

    ``fused[m, s]``: B and W in one go.
    """
    num_microbatches, num_stages = route.shape
    size = route.size
    number = np.arange(size).reshape(route.shape)
    ops = np.full((k.NUM_OP_ROWS, 3, *route.shape), -1, np.int64)
    backward = np.where(fused, 3, 1)
    ops[k.HOST] = route
    for row, queue in enumerate((k.FORWARD, k.BACKWARD, k.WEIGHT)):
        ops[k.QUEUE, row] = queue
    ops[k.DURATION, 0] = hosts.durations[0][route]
    ops[k.DURATION, 1] = hosts.durations[backward, route]
    ops[k.DURATION, 2] = hosts.durations[2][route]
    held, pending = hosts.held[route], hosts.pending[route]
    ops[k.TAKES] = 0
    ops[k.TAKES, 0] = held
    ops[k.GIVES, 0] = 0
    ops[k.GIVES, 1] = np.where(fused, 0, pending) - held
    ops[k.GIVES, 2] = -pending
    ops[k.DELAY] = 0
    ops[k.NEXT, 0, :, :-1] = number[:, 1:]
    ops[k.DELAY, 0, :, :-1] = hops[:, : num_stages - 1]
    ops[k.NEXT, 1, :, 1:] = size + number[:, :-1]
    ops[k.DELAY, 1, :, 1:] = hops[:, : num_stages - 1]
    ops[k.OWN_NEXT, 0] = size + number
    ops[k.OWN_NEXT, 1] = np.where(fused, -1, 2 * size + number)
    ops[k.WAITS_FOR, 0] = 1
    ops[k.WAITS_FOR, 0, :, 0] = 0
    ops[k.WAITS_FOR, 1] = 2
    ops[k.WAITS_FOR, 1, :, -1] = 1
    ops[k.WAITS_FOR, 2] = 1
    ops[k.READY] = 0
    kind = np.empty((3, *route.shape), np.int64)
    kind[0], kind[1], kind[2] = 0, backward, 2
    stage = np.broadcast_to(np.arange(num_stages), (3, *route.shape))
    microbatch = np.broadcast_to(np.arange(num_microbatches)[:, None], (3, *route.shape))
    return OperationGraph(
        hosts,
        np.ascontiguousarray(ops.reshape(k.NUM_OP_ROWS, -1)),
        kind.reshape(-1),
        np.ascontiguousarray(stage).reshape(-1),
        np.ascontiguousarray(microbatch).reshape(-1),
        3 * size - int(fused.sum()),
    )
