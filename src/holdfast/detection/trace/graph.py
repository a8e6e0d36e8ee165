"""What had to wait for what in a recorded trace; and when all ends if operations took other times.

The order at a worker is taken from the recording: what had ended when an operation began comes
before it. What the times mean is not known here.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.detection.trace.trace import Trace
from holdfast.errors import ConfigError

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
_ALONE = -1


class Meeting(Enum):
    """Who has to be there before an operation of this name gets on."""

    NOBODY = 0  # computation, and collectives whose peers are not recorded
    NEIGHBOUR = 1  # a send and its receive
    STAGE = 2  # the same stage of all pipelines
    ENDS = 3  # first and last stage of one pipeline: they share the embedding
    ALL = 4


def meeting(kind: str) -> Meeting:
    if kind.endswith(("-send", "-recv")):
        return Meeting.NEIGHBOUR
    if "clip" in kind or "grad-norm" in kind:  # the norm is of all gradients
        return Meeting.ALL
    if "embedding" in kind:
        return Meeting.ENDS
    if "layernorm" in kind or not any(word in kind for word in _COLLECTIVES):
        return Meeting.NOBODY  # layer norms are summed over the ranks that share a stage
    return Meeting.STAGE


@dataclass(frozen=True)
class TraceGraph:
    trace: Trace
    group: Ints  # of each operation: all that start to move together
    before: Ints  # operation ...
    after: Ints  # ... that ends before this group can start
    work_s: Floats  # of each operation: without waiting for others

    @property
    def num_groups(self) -> int:
        return int(self.group.max()) + 1

    @cached_property
    def _level(self) -> Ints:
        """Longest chain of groups before each."""
        level = np.zeros(self.num_groups, dtype=np.int64)
        for _ in range(self._longest_chain()):
            longer = np.zeros_like(level)
            np.maximum.at(longer, self.after, level[self.group[self.before]] + 1)
            if np.array_equal(longer, level):
                return level
            level = longer
        step = self.trace.steps[int(self.trace.step[np.argmax(level[self.group])])]
        raise ConfigError(
            f"the operations of step {step} wait for each other in a circle: "
            "check that seq_id numbers sends and receives alike"
        )

    def _longest_chain(self) -> int:
        return int(np.bincount(self.trace.step).max()) + 2

    @cached_property
    def _by_level(self) -> list[tuple[Ints, Ints, Ints]]:
        """For each level: its operations, and the ends that its groups wait for."""
        level, rows = self._level, []
        of_op, of_edge = level[self.group], level[self.after]
        ops, edges = np.argsort(of_op, kind="stable"), np.argsort(of_edge, kind="stable")
        numbers = np.arange(int(level.max()) + 2)
        op_cut = np.searchsorted(of_op[ops], numbers)
        edge_cut = np.searchsorted(of_edge[edges], numbers)
        for at in numbers[:-1]:
            chosen = edges[edge_cut[at] : edge_cut[at + 1]]
            own = ops[op_cut[at] : op_cut[at + 1]]
            rows.append((own, self.before[chosen], self.after[chosen]))
        return rows

    def replay(self, work_s: Floats) -> Floats:
        """Length of each step if operations took ``work_s`` and each began as soon as it could."""
        start_s, end_s = np.zeros(self.num_groups), np.zeros(self.trace.size)
        for ops, before, after in self._by_level:
            np.maximum.at(start_s, after, end_s[before])
            end_s[ops] = start_s[self.group[ops]] + work_s[ops]
        length_s = np.zeros(len(self.trace.steps))
        np.maximum.at(length_s, self.trace.step, end_s)
        return length_s


def graph_of(trace: Trace) -> TraceGraph:
    group, (before, after) = _groups(trace), _order(trace)
    early, receive = _sent_early(trace, group)
    group[early] = group.max() + 1 + np.arange(len(early))
    before, after = np.r_[before, early], np.r_[after, receive]
    # What a transfer itself takes: the time since the last of those that meet was there.
    last_s = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(last_s, group, trace.start_s)
    work_s = np.maximum(trace.end_s - last_s[group], 0.0)
    return TraceGraph(trace, group, before, group[after], work_s)


def _sent_early(trace: Trace, group: Ints) -> tuple[Ints, Ints]:
    """Sends that ended before their receive began: they waited for nobody."""
    sends, receives = (
        np.flatnonzero(np.array([kind.endswith(side) for kind in trace.kinds])[trace.kind])
        for side in ("-send", "-recv")
    )
    of_group = np.full(int(group.max()) + 1, _ALONE)
    of_group[group[receives]] = receives
    partner = of_group[group[sends]]
    sends, partner = sends[partner != _ALONE], partner[partner != _ALONE]
    early = trace.end_s[sends] <= trace.start_s[partner]
    return sends[early], partner[early]


def _groups(trace: Trace) -> Ints:
    """A number for each operation; those that meet have the same."""
    place = np.full((6, trace.size), _ALONE, dtype=np.int64)
    for number, kind in enumerate(trace.kinds):
        rows = np.flatnonzero(trace.kind == number)
        place[:, rows] = _key(trace, rows, number, kind)
    _, group = np.unique(place, axis=1, return_inverse=True)
    return group.ravel().astype(np.int64)


def _key(trace: Trace, rows: Ints, number: int, kind: str) -> Ints:
    """Six numbers, equal for operations that meet."""
    common = [trace.step[rows], trace.peer[rows], trace.sequence[rows], trace.chunk[rows]]
    nothing = np.full(len(rows), _ALONE)
    what = np.full(len(rows), number)
    match meeting(kind):
        case Meeting.NOBODY:
            return np.stack([nothing, rows, nothing, nothing, nothing, nothing])
        case Meeting.NEIGHBOUR:
            common[3] = trace.pipeline[rows]
            return np.stack([*common, *_boundary(trace, rows, kind)])
        case Meeting.STAGE:
            where = trace.stage[rows]
        case Meeting.ENDS:
            where = trace.pipeline[rows]
        case Meeting.ALL:
            where, common[1] = nothing, nothing
    return np.stack([*common, what, where])


def _boundary(trace: Trace, rows: Ints, kind: str) -> tuple[Ints, Ints]:
    """Which way, and the stage that sends; with several chunks the last one sends to the first."""
    forward, send = kind.startswith("forward"), kind.endswith("-send")
    back = 0 if send else (-1 if forward else 1)
    sender = (trace.stage[rows] + back) % trace.layout.stages
    # Below all that numbers of operations could be.
    return np.full(len(rows), -2 if forward else -3), sender


def _order(trace: Trace) -> tuple[Ints, Ints]:
    """Pairs of operations of one worker: the first had ended when the second began."""
    before: list[int] = []
    after: list[int] = []
    order = np.lexsort((trace.end_s, trace.start_s, trace.rank, trace.worker, trace.step))
    same = np.stack([trace.step, trace.worker, trace.rank])[:, order]
    new = np.r_[True, (same[:, 1:] != same[:, :-1]).any(axis=0)]
    start_s, end_s, took_s = trace.start_s.tolist(), trace.end_s.tolist(), trace.took_s.tolist()
    open_ops: list[int] = []
    for op, begins in zip(order.tolist(), new.tolist(), strict=True):
        if begins:
            open_ops = []
        # Clocks are coarse: ends and starts that overlap by less than half of both do not.
        done = [
            other
            for other in open_ops
            if end_s[other] - start_s[op] <= 0.5 * min(took_s[other], took_s[op])
        ]
        if done:
            latest = max(start_s[other] for other in done)
            # The others ended before one of these began.
            last = [o for o in done if end_s[o] > latest or start_s[o] >= latest]
            before += last
            after += [op] * len(last)
            covered = set(done) - set(last)
            open_ops = [other for other in open_ops if other not in covered]
        open_ops.append(op)
    return np.array(before, dtype=np.int64), np.array(after, dtype=np.int64)
