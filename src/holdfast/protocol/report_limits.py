"""What all would tell of all, in a large run some tell of some. Pure.

Every holder of a stage exchanges gradients with every other, and every holder of the last stage
knows all losses: told in full, reports of a step would grow with the square of the pipelines.
"""

from collections.abc import Iterable, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.protocol.records import OperationTime, Transfers
from holdfast.schedule.operation import Kind, parse_op

_ALL_NEAR = 8  # up to so many other holders of the same stage: what came from each is told
_MOST_NEAR = 4  # of more: the nearest. Their links are measured, too
_MOST_TELLING = 256  # members that tell of their operations in one step
_FULL_TURN = 8  # of more: each tells of all of them in every eighth of its turns
_TOGETHER = 4  # pipelines in the same step: most links between near ones are seen both ways
_ALL_IN_FULL = 16  # steps
_ALL_TELL = 8  # up to so many holders of the last stage
_MOST_TELL = 4  # of more: far from each other, since machines are lost as a whole


def tells_losses(me: WorkerId, holders: Sequence[WorkerId]) -> bool:
    """``holders``: of the last stage, sorted."""
    if len(holders) <= _ALL_TELL or me not in holders:
        return True
    tellers = {number * len(holders) // _MOST_TELL for number in range(_MOST_TELL)}
    return holders.index(me) in tellers


def num_turns(num_members: int) -> int:
    """Steps from one in which a member tells of its operations to the next."""
    return -(-num_members // _MOST_TELLING)


def tells_operations(me: WorkerId, step: int, num_members: int) -> bool:
    """When its operations ran and what came in. The first steps are learnt from: all tell."""
    return _turn(me, step, num_members) is not None


def told_operations(
    me: WorkerId, step: int, num_members: int, operations: Sequence[OperationTime]
) -> list[OperationTime]:
    """In the same order: none, all, or the typical ones, which say how fast it is."""
    turn = _turn(me, step, num_members)
    if turn is None:
        return []
    return list(operations) if turn % _FULL_TURN == 0 else _typical(operations)


def _turn(me: WorkerId, step: int, num_members: int) -> int | None:
    """0: also whenever nobody has to wait for a turn."""
    every = num_turns(num_members)
    number, rest = divmod(me.pipeline // _TOGETHER + step, every)
    if every == 1 or step < _ALL_IN_FULL:
        return 0
    return None if rest else number


def _typical(operations: Sequence[OperationTime]) -> list[OperationTime]:
    """Of each stage and kind the one that took neither long nor short. R is mostly waiting."""
    alike: dict[tuple[int, Kind], list[int]] = {}
    for index, one in enumerate(operations):
        op = parse_op(one.op)
        if op.kind is not Kind.R:
            alike.setdefault((op.stage, op.kind), []).append(index)
    middle = []
    for indices in alike.values():
        indices.sort(key=lambda index: operations[index].end_s - operations[index].start_s)
        middle.append(indices[(len(indices) - 1) // 2])
    return [operations[index] for index in sorted(middle)]


def near(me: WorkerId, others: Iterable[WorkerId]) -> list[WorkerId]:
    """Those of the nearest pipelines."""
    return sorted(others, key=lambda one: (abs(one.pipeline - me.pipeline), one))[:_MOST_NEAR]


def told_transfers(me: WorkerId, transfers: Sequence[Transfers]) -> list[Transfers]:
    """In the same order; of the reduction only what came from near."""
    reduction = {parse_worker(one.source) for one in transfers if one.purpose == "reduction"}
    if len(reduction) <= _ALL_NEAR:
        return list(transfers)
    told = {str(worker) for worker in near(me, reduction)}
    return [one for one in transfers if one.purpose != "reduction" or one.source in told]
