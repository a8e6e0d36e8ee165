"""A running average of the weights, kept beside them: it follows when a step is final.

So it never has to be taken back. Of a parameter with a master it follows the master. It is state,
in fp32, and no bit of the training depends on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError
from holdfast.weights.files import AVERAGE


class Average:
    """``decay``: what stays of it in a step; 0: there is none."""

    def __init__(self, followed: Sequence[nn.Parameter], keys: Sequence[str], decay: float) -> None:
        self._decay = decay
        self._followed = tuple(followed) if decay else ()
        self._keys = tuple(f"{key}/{AVERAGE}" for key in keys) if decay else ()
        self._values = [one.detach().to(torch.float32, copy=True) for one in self._followed]

    def follow(self) -> None:
        """The weights have had one more step."""
        for value, weight in zip(self._values, self._followed, strict=True):
            value.mul_(self._decay).add_(weight.detach(), alpha=1 - self._decay)

    def live_tensors(self) -> dict[str, Tensor]:
        return dict(zip(self._keys, self._values, strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Of a weight without a stored average, as it is after training without: begins here."""
        for key, value, weight in zip(self._keys, self._values, self._followed, strict=True):
            stored = tensors.get(key, weight.detach())
            if stored.shape != value.shape:
                raise CheckpointError(
                    f"checkpoint has {key} of shape {tuple(stored.shape)}, the job's parameter has "
                    f"{tuple(value.shape)}; resume with the same job"
                )
            value.copy_(stored)

    @contextmanager
    def in_place_of(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """``parameters``: as the layers hold them. Other memory for a while, if there is one."""
        if not self._values:
            yield
            return
        present = [parameter.data for parameter in parameters]
        try:
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data = value.to(parameter.dtype)
            yield
        finally:
            for parameter, value in zip(parameters, present, strict=True):
                parameter.data = value
