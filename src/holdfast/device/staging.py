"""Copies between host and device through two pinned buffers, on a stream of their own.

While one piece is on the bus, the piece before it is copied on the host. Only the copies
themselves are waited for, never the whole device.
"""

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class _Lane:
    buffer: Tensor  # pinned
    arrived: Any  # the event of its newest copy


class Staging:
    """``module``: torch.cuda, or that of another kind. May be used from any thread."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        self._lock = threading.Lock()
        self._stream = module.Stream(device)
        self._lanes = [
            _Lane(torch.empty(PIECE_BYTES, dtype=torch.uint8).pin_memory(), module.Event())
            for _ in range(2)
        ]

    def to_host(self, tensor: Tensor) -> Tensor:
        out = torch.empty(tensor.shape, dtype=tensor.dtype)
        source, target = _raw(tensor), _raw(out)
        with self._lock:
            # What makes the tensor was given to the current stream.
            self._stream.wait_stream(self._module.current_stream(self._device))
            on_the_way: tuple[_Lane, slice] | None = None
            for number, piece in enumerate(_pieces(source)):
                lane = self._lanes[number % 2]
                with self._module.stream(self._stream):
                    room = lane.buffer[: piece.stop - piece.start]
                    room.copy_(source[piece], non_blocking=True)
                    lane.arrived.record(self._stream)
                if on_the_way is not None:
                    _take(*on_the_way, target)
                on_the_way = lane, piece
            if on_the_way is not None:
                _take(*on_the_way, target)
        return out

    def to_device(self, tensor: Tensor) -> Tensor:
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = _raw(tensor), _raw(out)
        current = self._module.current_stream(self._device)
        with self._lock:
            # The memory may have been another tensor's, in operations that are not over.
            self._stream.wait_stream(current)
            for number, piece in enumerate(_pieces(source)):
                lane = self._lanes[number % 2]
                lane.arrived.synchronize()  # its buffer is free
                room = lane.buffer[: piece.stop - piece.start]
                room.copy_(source[piece])
                with self._module.stream(self._stream):
                    target[piece].copy_(room, non_blocking=True)
                    lane.arrived.record(self._stream)
            current.wait_stream(self._stream)
        return out


def _raw(tensor: Tensor) -> Tensor:
    """All bytes; a lazily conjugated or negated tensor has other bytes than values."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.view(-1).view(torch.uint8)


def _pieces(raw: Tensor) -> list[slice]:
    size = raw.numel()
    return [slice(at, min(at + PIECE_BYTES, size)) for at in range(0, size, PIECE_BYTES)]


def _take(lane: _Lane, piece: slice, target: Tensor) -> None:
    lane.arrived.synchronize()
    target[piece].copy_(lane.buffer[: piece.stop - piece.start])
