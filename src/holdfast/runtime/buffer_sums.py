"""Changes of a stage's buffers, summed over the micro-batches of a step and over its holders.

The changes lie on a grid (see ``buffers.py``), so their fp64 sums are exact in any order.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.transport.base import Channel, Tag, Transport


class BufferSums:
    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._sums: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._sums = {}

    def add(self, changes: Mapping[str, Tensor]) -> None:
        for key, change in changes.items():
            known = self._sums.get(key)
            self._sums[key] = change if known is None else known + change

    def mean(
        self,
        members: Sequence[WorkerId],
        me: WorkerId,
        transport: Transport,
        tag: tuple[int, int],
        timeout_s: float,
    ) -> dict[str, Tensor]:
        """Mean change over all micro-batches; ``tag`` is (step, attempt)."""
        keys = sorted(self._sums)
        if not keys:
            return {}
        total = torch.cat([self._sums[key].reshape(-1) for key in keys])
        message_tag = Tag(Channel.BUFFERS, *tag)
        others = [member for member in members if member != me]
        for other in others:
            transport.send(other, message_tag, total)
        for other in others:
            total = total + transport.receive(other, message_tag, timeout_s)
        sizes = [self._sums[key].numel() for key in keys]
        means = torch.split(total / self._num_microbatches, sizes)
        return {
            key: part.reshape(self._sums[key].shape) for key, part in zip(keys, means, strict=True)
        }
