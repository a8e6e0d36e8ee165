"""All that makes a stage go on bit for bit: parameters, buffers, optimizer, exponents, loss
scale.

One set of named tensors, whether it comes from a checkpoint or from a peer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import CheckpointError
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.stage.named_tensors import (
    ASIDE,
    POSITION,
    BuiltBuffers,
    Layers,
    live_tensors,
    load_state_tensors,
    state_tensors,
)
from holdfast.runtime.stage.slots import ParameterSlot
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.storage.checkpoint import read_layers
from holdfast.storage.contents import Checkpoint
from holdfast.storage.stores import OpenPart, part_folder

OPTIMIZER = "optimizer"  # its kind, in a checkpoint's manifest
_EXPONENT = "exponent"  # of a parameter's fixed-point sums: part of the state
_SCALE = "/loss_scale"  # in every layer: any cut finds it


class StreamPosition(Protocol):
    def position(self) -> Tensor | None:
        """Not after the samples of the next step; None: not known."""
        ...

    def go_on_from(self, position: Tensor) -> None: ...


class StageState:
    def __init__(
        self,
        layers: Layers,
        slots: Sequence[ParameterSlot],
        optimizer: StageOptimizer,
        gradients: ExactGradients | FastGradients,
        loss_scale: LossScale | None = None,
        device: Device = PROCESSOR,
    ) -> None:
        self._device = device
        self._layers, self._slots = layers, slots
        self._loss_scale = loss_scale or LossScale()
        self._optimizer, self._gradients = optimizer, gradients
        self._exponents = tuple(gradients.exponents)  # of the next step's sums
        self._built = BuiltBuffers(layers)
        self._stream: StreamPosition | None = None
        self._stream_keys: list[str] = []

    def with_stream(self, stream: StreamPosition, fed: Iterable[int]) -> None:
        """``fed``: layers that data come to."""
        self._stream = stream
        self._stream_keys = [f"{layer}.{POSITION}" for layer in sorted(fed)]

    def begin_step(self) -> None:
        self._gradients.clear()
        if isinstance(self._gradients, ExactGradients):
            self._gradients.exponents = self._exponents

    def begin_sums(self) -> None:
        """Before the first backward of a step."""
        self._gradients.begin()

    def choose_exponents(self, maxima: Sequence[float]) -> None:
        """For the step after the one whose reduced gradient has these largest elements."""
        if isinstance(self._gradients, ExactGradients):
            self._exponents = self._gradients.next_exponents(maxima)

    def tensors(self) -> dict[str, Tensor]:
        """Copies on the host, by layer."""
        copy = self._device.host_copy
        changed = {key: copy(tensor) for key, tensor in self._built.changed().items()}
        own = state_tensors(self._layers, copy) | changed
        return self._whole(own | self._optimizer.state_tensors(copy))

    def live_tensors(self) -> dict[str, Tensor]:
        """The same, but not copied: they are true until the next step is applied."""
        own = live_tensors(self._layers) | self._built.changed()
        return self._whole(own | self._optimizer.live_tensors())

    def _whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(self._gradients, ExactGradients):
            for slot, exponent in zip(self._slots, self._exponents, strict=True):
                tensors[f"{slot.key}/{_EXPONENT}"] = torch.tensor(exponent)
        if self._stream is not None and (position := self._stream.position()) is not None:
            tensors |= {key: position.clone() for key in self._stream_keys}
        if not self._loss_scale.is_steady:
            for number in self._layers:
                tensors[f"{number}.{_SCALE}"] = torch.tensor(self._loss_scale.state)
        return tensors

    def load(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        rest = dict(tensors)
        positions = [rest.pop(key) for key in list(rest) if key.endswith(POSITION)]
        if self._stream is not None and positions:
            self._stream.go_on_from(positions[0])
        scales = [rest.pop(k) for k in list(rest) if k.endswith(_SCALE)]
        if scales:
            self._loss_scale.load(ScaleState(*map(int, scales[0])))
        exponents = {k: rest.pop(k) for k in list(rest) if k.endswith(f"/{_EXPONENT}")}
        state = {k: rest.pop(k) for k in list(rest) if "/" in k and not k.endswith(ASIDE)}
        self._built.restore()
        load_state_tensors(self._layers, rest)
        self._optimizer.load_state_tensors(state)
        if isinstance(self._gradients, ExactGradients) and exponents:
            keys = [f"{slot.key}/{_EXPONENT}" for slot in self._slots]
            if missing := [key for key in keys if key not in exponents]:
                raise CheckpointError(
                    f"{origin} lacks {missing[0]}; resume with the job that wrote it"
                )
            self._exponents = tuple(int(exponents[key]) for key in keys)

    def load_checkpoint(self, checkpoint: Checkpoint, open_part: OpenPart = part_folder) -> None:
        self._optimizer.check_wrote({part.state.get(OPTIMIZER) for part in checkpoint.parts})
        tensors = read_layers(checkpoint, self._layers, open_part)
        self.load(tensors, f"checkpoint {checkpoint.directory}")
