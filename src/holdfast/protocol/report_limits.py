"""What all would tell of all, in a large run some tell of some. Pure.

Every holder of a stage exchanges gradients with every other, and every holder of the last stage
knows all losses: told in full, reports of a step would grow with the square of the pipelines.
"""

from collections.abc import Iterable, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.protocol.records import Transfers

MOST_NEAR = 8  # holders of the same stage whose transfers are told, and whose links are measured
_MOST_FULL = 512  # members that tell of their operations in one step
_ALL_IN_FULL = 16  # steps
_ALL_TELL = 8  # up to so many holders of the last stage
_MOST_TELL = 4  # of more: far from each other, since machines are lost as a whole


def tells_losses(me: WorkerId, holders: Sequence[WorkerId]) -> bool:
    """``holders``: of the last stage, sorted."""
    if len(holders) <= _ALL_TELL or me not in holders:
        return True
    tellers = {number * len(holders) // _MOST_TELL for number in range(_MOST_TELL)}
    return holders.index(me) in tellers


def tells_operations(me: WorkerId, step: int, num_members: int) -> bool:
    """When its operations ran and what came in. The first steps are learnt from: all tell."""
    every = -(-num_members // _MOST_FULL)
    return step < _ALL_IN_FULL or (me.pipeline + step) % every == 0


def near(me: WorkerId, others: Iterable[WorkerId]) -> list[WorkerId]:
    """Those of the nearest pipelines."""
    return sorted(others, key=lambda one: (abs(one.pipeline - me.pipeline), one))[:MOST_NEAR]


def told_transfers(me: WorkerId, transfers: Sequence[Transfers]) -> list[Transfers]:
    """In the same order; of the reduction only what came from near."""
    reduction = {parse_worker(one.source) for one in transfers if one.purpose == "reduction"}
    if len(reduction) <= MOST_NEAR:
        return list(transfers)
    told = {str(worker) for worker in near(me, reduction)}
    return [one for one in transfers if one.purpose != "reduction" or one.source in told]
