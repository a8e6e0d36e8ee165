"""What a step adds up besides gradients: changes of buffers, losses, tokens.

Every holder of the stage ends with the totals, so that none of it dies with the worker that
computed it. Changes lie on a grid (see ``buffers.py``): their fp64 sums are exact in any order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.transport.base import Channel, Tag, Transport


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all micro-batches of a step at one stage."""

    changes: Mapping[str, Tensor] = field(default_factory=dict)  # of buffers: the mean, fp64
    losses: Mapping[int, float] = field(default_factory=dict)  # by micro-batch; last stage only
    num_tokens: int = 0
    weights: Mapping[int, float] = field(default_factory=dict)  # of losses that do not count 1

    @property
    def mean_weight(self) -> float:
        """Of a micro-batch. Rounded once: the same in any order."""
        if not self.weights:
            return 1.0
        return math.fsum(weight for _, _, weight in self.rows()) / len(self.losses)

    def rows(self) -> list[tuple[int, float, float]]:
        """(micro-batch, loss, weight), in their order."""
        losses = sorted(self.losses.items())
        return [(number, loss, self.weights.get(number, 1.0)) for number, loss in losses]


class StepSums:
    """``shapes``: of every buffer of the stage, whether or not a forward writes to it."""

    def __init__(
        self, num_microbatches: int, shapes: Mapping[str, torch.Size], *, is_last: bool
    ) -> None:
        self._num_microbatches = num_microbatches
        self._shapes = dict(sorted(shapes.items()))
        self._keys = list(self._shapes)
        self._is_last = is_last
        self.clear()

    def clear(self) -> None:
        self._changes: dict[str, Tensor] = {}
        self._losses: dict[int, float] = {}
        self._weights: dict[int, float] = {}
        self._num_tokens = 0

    def add(self, changes: Mapping[str, Tensor]) -> None:
        for key, change in changes.items():
            known = self._changes.get(key)
            self._changes[key] = change if known is None else known + change

    def add_loss(self, microbatch: int, loss: float, num_tokens: int, weight: float = 1.0) -> None:
        self._losses[microbatch] = loss
        if weight != 1.0:
            self._weights[microbatch] = weight
        self._num_tokens += num_tokens

    def totals(
        self,
        members: Sequence[WorkerId],
        me: WorkerId,
        transport: Transport,
        tag: Tag,
        timeout_s: float,
    ) -> Totals:
        """Over all ``members``, which hold the same stage. Only reads: it can be done again."""
        others = [member for member in members if member != me]
        if not (self._keys or self._is_last):
            return Totals()
        mine = Totals(self._changes, self._losses, self._num_tokens, self._weights)
        own = encode_totals(mine, self._keys)
        tag = tag._replace(channel=Channel.BUFFERS)
        for other in others:
            transport.send(other, tag, own)
        parts = [own, *(transport.receive(other, tag, timeout_s) for other in others)]
        return self._mean([decode_totals(part, self._shapes) for part in parts])

    def _mean(self, parts: Sequence[Totals]) -> Totals:
        changes: dict[str, Tensor] = {}
        losses: dict[int, float] = {}
        weights: dict[int, float] = {}
        for part in parts:
            losses |= part.losses
            weights |= part.weights
            for key, change in part.changes.items():
                changes[key] = changes[key] + change if key in changes else change
        means = {key: change / self._num_microbatches for key, change in sorted(changes.items())}
        num_tokens = sum(part.num_tokens for part in parts)
        ordered = dict(sorted(losses.items())), num_tokens, dict(sorted(weights.items()))
        return Totals(means, *ordered)


def encode_totals(totals: Totals, keys: Sequence[str]) -> Tensor:
    """[tokens, number of losses, (micro-batch, loss, weight) ..., (buffer, its values ...) ...].

    In fp64. ``keys``: all buffers of the stage, sorted.
    """
    head = [float(totals.num_tokens), float(len(totals.losses))]
    for row in totals.rows():
        head += map(float, row)
    pieces = [torch.tensor(head, dtype=torch.float64)]
    for key, change in totals.changes.items():
        pieces.append(torch.tensor([float(keys.index(key))], dtype=torch.float64))
        pieces.append(change.reshape(-1).to(torch.float64))
    return torch.cat(pieces)


def decode_totals(part: Tensor, shapes: Mapping[str, torch.Size]) -> Totals:
    keys = sorted(shapes)
    at = 2 + 3 * int(part[1])
    rows = part[2:at].reshape(-1, 3).tolist()
    losses = {int(microbatch): loss for microbatch, loss, _ in rows}
    weights = {int(microbatch): weight for microbatch, _, weight in rows if weight != 1.0}
    changes: dict[str, Tensor] = {}
    while at < part.numel():
        key = keys[int(part[at])]
        end = at + 1 + shapes[key].numel()
        changes[key] = part[at + 1 : end].reshape(shapes[key])
        at = end
    return Totals(changes, losses, int(part[0]), weights)
