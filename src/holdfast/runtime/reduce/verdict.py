"""Is a step's gradient sound, and how long is it? Norms of all stages, compared everywhere.

Each stage sends its sums of squares to the others as soon as its gradient is reduced. Everyone
adds the same numbers in layer order, so everyone comes to the same verdict without a vote.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.transport.base import Channel, Tag, Transport

_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


@dataclass(frozen=True, slots=True)
class Verdict:
    norm: float
    scale: float | None  # the gradient is to be multiplied by this; None: as it is
    skip: bool  # it holds NaN or Inf, or is empty: leave the step out

    @property
    def good(self) -> bool:
        """Whether a step applied speculatively was the right one."""
        return self.scale is None and not self.skip

    @property
    def is_empty(self) -> bool:
        """No micro-batch has any weight: there is no mean to speak of."""
        return self == _EMPTY

    def is_clipped(self, clip_norm: float | None) -> bool:
        return not self.skip and clip_norm is not None and self.norm > clip_norm


_EMPTY = Verdict(0.0, scale=0.0, skip=True)


def judge(pieces: Sequence[Tensor], clip_norm: float | None) -> Verdict:
    """``pieces`` of all stages in order, as :func:`make_piece` makes them."""
    total = 0.0
    for piece in pieces:
        for square in piece[2:].tolist():
            total += square
    weight = pieces[-1][1].item()  # only the last stage knows it
    norm = math.sqrt(total) / (weight or 1.0) if total >= 0 else math.nan
    if any(bool(piece[0]) for piece in pieces) or not math.isfinite(norm):
        return Verdict(norm, None, True)
    if not weight:
        return _EMPTY
    verdict = Verdict(norm, None if weight == 1.0 else 1.0 / weight, False)
    if clip_norm is None or not verdict.is_clipped(clip_norm):
        return verdict
    return replace(verdict, scale=clip_norm / (norm + _EPSILON) / weight)


class Verdicts(Protocol):
    """Where the verdict of a step comes from."""

    def tell(self, step: int, attempt: int, piece: Tensor) -> None:
        """``piece``: of this stage, for the others."""
        ...

    def missing(self, step: int, attempt: int) -> list[tuple[WorkerId, Tag]]:
        """The messages that a verdict still waits for."""
        ...

    def hear(self, step: int, attempt: int, own: Tensor) -> Verdict:
        """Waits for it. ``own``: the piece that was told."""
        ...


class VerdictExchange:
    """Who tells whom: holder j of a stage hears from holder j modulo n of each other stage.

    ``holders``: of every stage, in the same order everywhere. Made anew for each epoch.
    """

    def __init__(
        self,
        me: WorkerId,
        stage: int,
        holders: Sequence[Sequence[WorkerId]],
        transport: Transport,
        clip_norm: float | None,
        known: Mapping[int, Verdict] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        """``known``: verdicts that somebody has heard already, by step; nobody tells them again."""
        self._transport, self._timeout_s = transport, timeout_s
        self._clip_norm = clip_norm
        self._known = dict(known or {})
        self._stage = stage
        self._num_stages = len(holders)
        place, num_twins = holders[stage].index(me), len(holders[stage])
        others = [other for other in range(len(holders)) if other != stage]
        self._sources = {other: holders[other][place % len(holders[other])] for other in others}
        self._listeners = [
            listener
            for other in others
            for j, listener in enumerate(holders[other])
            if j % num_twins == place
        ]

    def tell(self, step: int, attempt: int, piece: Tensor) -> None:
        if step not in self._known:
            for other in self._listeners:
                self._transport.send(other, _tag(step, attempt), piece)

    def wanted(self, step: int, attempt: int) -> list[tuple[WorkerId, Tag]]:
        if step in self._known:
            return []
        return [(source, _tag(step, attempt)) for source in self._sources.values()]

    def missing(self, step: int, attempt: int) -> list[tuple[WorkerId, Tag]]:
        has = self._transport.has
        return [(source, tag) for source, tag in self.wanted(step, attempt) if not has(source, tag)]

    def hear(self, step: int, attempt: int, own: Tensor) -> Verdict:
        """Waits for all stages' pieces."""
        if step in self._known:
            return self._known[step]
        tag = _tag(step, attempt)
        pieces = [
            own
            if stage == self._stage
            else self._transport.receive(self._sources[stage], tag, self._timeout_s)
            for stage in range(self._num_stages)
        ]
        return judge(pieces, self._clip_norm)


def make_piece(nonfinite: bool, squares: Sequence[float], mean_weight: float = 1.0) -> Tensor:
    """What a stage tells the others of its gradient: [nonfinite, mean weight of a micro-batch,
    square of slot 0, ...], in fp64. The gradient is weighted, and not yet divided by the mean."""
    return torch.tensor([float(nonfinite), mean_weight, *squares], dtype=torch.float64)


def _tag(step: int, attempt: int) -> Tag:
    return Tag(Channel.VERDICT, step, attempt)
