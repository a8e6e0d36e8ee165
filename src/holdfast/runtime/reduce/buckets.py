"""Which parameters which workers reduce together. Pure bookkeeping: no tensor is touched here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.cluster import WorkerId

ParameterName = tuple[int, str]  # layer, name in the layer


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters that the same workers reduce together, as one vector.

    ``groups`` has an entry for each parameter: the slots of this worker that hold it, which are
    several if the stage holds twins of a tied parameter.
    """

    number: int
    members: tuple[WorkerId, ...]
    groups: tuple[tuple[int, ...], ...]


def plan_buckets(
    stage: int,
    *,
    slots: Mapping[int, Sequence[ParameterName]],
    ties: Sequence[Sequence[ParameterName]],
    holders: Mapping[int, Iterable[WorkerId]],
) -> tuple[Bucket, ...]:
    """What a holder of ``stage`` takes part in: bucket 0 untied, bucket 1 + i the i-th tie.

    ``slots`` and ``holders`` are those of every stage; all workers must see the same ties.
    """
    own = slots[stage]
    tied = {name for tie in ties for name in tie}
    untied = tuple((slot,) for slot, name in enumerate(own) if name not in tied)
    buckets = [Bucket(0, tuple(sorted(holders[stage])), untied)] if untied else []
    for number, tie in enumerate(ties, start=1):
        if twins := tuple(slot for slot, name in enumerate(own) if name in tie):
            stages = [s for s, names in slots.items() if not set(names).isdisjoint(tie)]
            members = {worker for s in stages for worker in holders[s]}
            buckets.append(Bucket(number, tuple(sorted(members)), (twins,)))
    return tuple(buckets)
