"""What the members have told, step by step: Inventories turned into the facts that lineage works
on.

Decides nothing: who runs what is left to the planner. Knows no lanes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from math import isnan
from types import MappingProxyType

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.planner.remainder.facts import Facts, MicrobatchProgress, Place
from holdfast.protocol.messages import Inventory
from holdfast.protocol.records import VerdictRow

_state = {int(one): one for one in MicrobatchProgress}.__getitem__
_GOOD = VerdictRow(0.0, None, False)


@dataclass(frozen=True)
class KeptFacts:
    """Boundary tensors of one step that their sender still has, by micro-batch."""

    activations: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MemberInventory:
    """An Inventory that was read, with the stage that its worker holds."""

    worker: WorkerId
    stage: int
    reduced: int
    oldest: int
    attempt: int
    progress: Mapping[int, MicrobatchProgress]
    kept: Mapping[int, KeptFacts]  # by step
    verdicts: Mapping[int, VerdictRow]

    @classmethod
    def read(cls, worker: WorkerId, stage: int, inventory: Inventory) -> "MemberInventory":
        return cls(
            worker,
            stage,
            inventory.reduced,
            inventory.oldest,
            inventory.attempt,
            dict(zip(inventory.progress, map(_state, inventory.progress.values()), strict=True)),
            _kept(inventory),
            inventory.verdicts,
        )

    def can_run(self, step: int) -> bool:
        """Whether it has, or will have, the weights for operations of ``step``."""
        return self.reduced <= step or self.oldest <= step

    def facts(self, step: int, attempt: int) -> Facts:
        """What it has of ``step``. What was made in an attempt that is void is nothing."""
        if self.reduced < step or (self.reduced == step and self.attempt != attempt):
            return Facts()
        stepped, kept = self.reduced > step, self.kept.get(step, KeptFacts())
        return Facts(
            progress={}
            if stepped
            else dict(zip(self._at(self.progress), self.progress.values(), strict=True)),
            activations=frozenset(self._at(kept.activations)),
            gradients=frozenset(self._at(kept.gradients)),
            stepped=frozenset({self.stage} if stepped else ()),
        )

    def _at(self, microbatches: Iterable[int]) -> Iterator[Place]:
        return zip(repeat(self.stage), microbatches)


def _kept(inventory: Inventory) -> dict[int, KeptFacts]:
    return {
        one.step: KeptFacts(frozenset(one.activations), frozenset(one.gradients))
        for one in inventory.kept
    }


def verdicts_of(
    everyone: Iterable[MemberInventory],
    heard: Mapping[WorkerId, Mapping[int, VerdictRow]] = MappingProxyType({}),
) -> dict[int, VerdictRow]:
    """All that anyone has heard. A step's verdict is the same everywhere, or bits differ.

    ``heard``: what was told before, also by some who are no members any more.
    """
    verdicts: dict[int, VerdictRow] = {}
    heard_by: dict[int, WorkerId] = {}
    told = [(member.worker, member.verdicts) for member in everyone]
    for worker, own in (*told, *heard.items()):
        for step, verdict in own.items():
            known = verdicts.get(step)
            if known is None:
                verdicts[step], heard_by[step] = verdict, worker
            elif known != verdict and not _same(known, verdict):
                raise ProtocolError(
                    f"workers {heard_by[step]} and {worker} tell of different verdicts of step "
                    f"{step}: {known} and {verdict}; expected the same bits everywhere"
                )
    return dict(sorted(verdicts.items()))


def _same(one: VerdictRow, other: VerdictRow) -> bool:
    """A step may be skipped because its norm is not a number; that is the same verdict too."""
    both_nan = isnan(one.norm) and isnan(other.norm)
    return one[1:] == other[1:] and (both_nan or one.norm == other.norm)


def attempt_of(
    step: int,
    everyone: Iterable[MemberInventory],
    verdicts: Mapping[int, VerdictRow],
    *,
    staggered: bool,
) -> int:
    """1 if somebody knows that the step before was taken back: then all redo ``step``."""
    newest = max((one.attempt for one in everyone if one.reduced == step), default=0)
    before = verdicts.get(step - 1, _GOOD)
    return max(newest, int(staggered and (before.scale is not None or before.skip)))
