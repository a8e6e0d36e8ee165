"""A micro-batch on its way from the process that has loaded it, through a pipe of the two alone.

Tensors arrive with the strides they had, in memory that torch has allocated: on other memory an
operation may round otherwise. Not in shared memory: containers often have very little of it.
"""

import io
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

_Form = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]


class _Packer(pickle.Pickler):
    """Bytes of tensors go beside the pickle, without what else their storage holds."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.parts: list[Tensor] = []

    def persistent_id(self, value: Any) -> _Form | None:
        is_plain = type(value) is Tensor and value.layout == torch.strided
        if not is_plain or value.device.type != "cpu" or value.is_quantized:
            return None
        last = sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
        span = last + 1 if value.numel() else 0
        used = value.detach().as_strided((span,), (1,))
        self.parts.append(used.view(torch.uint8))
        return len(self.parts) - 1, value.dtype, value.shape, value.stride()


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, form: _Form) -> Tensor:
        number, dtype, shape, stride = form
        return self._parts[number].view(dtype).as_strided(shape, stride)


class Parcel:
    """Packed when it is made: what cannot be pickled raises then, and nothing is on the way."""

    def __init__(self, value: Any) -> None:
        self._file = io.BytesIO()
        packer = _Packer(self._file)
        packer.dump(value)
        self._parts = packer.parts

    def send(self, connection: Connection) -> None:
        connection.send([part.numel() for part in self._parts])
        connection.send_bytes(self._file.getbuffer())
        for part in self._parts:
            if part.numel():
                connection.send_bytes(part.numpy().data)


def receive(connection: Connection) -> Any:
    """From a process that this one has forked: it is trusted as this one is."""
    parts = [torch.empty(size, dtype=torch.uint8) for size in connection.recv()]
    pickled = connection.recv_bytes()
    for part in parts:
        if part.numel():
            connection.recv_bytes_into(part.numpy())
    return _Unpacker(io.BytesIO(pickled), parts).load()
