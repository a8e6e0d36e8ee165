"""What is done to a reduced gradient, after it was scaled, before the optimizer gets it.

Clipped element by element, then noise is added. Noise is a function of seed, step and parameter:
everyone who applies the step, or takes it back, draws the same.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from holdfast.config import TrainConfig

_LARGEST_SEED = 2**63 - 1


class Finishing:
    """``keys``: of the parameters; equal ones, as of twins, have the same noise."""

    def __init__(self, keys: Sequence[str] = (), train: TrainConfig | None = None) -> None:
        train = train or TrainConfig()
        self._keys, self._seed = tuple(keys), train.seed
        self._clip_value = train.clip_value
        self._noise, self._decay = train.noise, train.noise_decay
        self._is_off = not self._clip_value and not self._noise

    def finished(self, step: int, index: int, gradient: Tensor) -> Tensor:
        """Never changes ``gradient``, which may have to be used again."""
        if self._is_off:
            return gradient
        if self._clip_value:
            gradient = gradient.clamp(-self._clip_value, self._clip_value)
        if self._noise:
            gradient = gradient.add(self._drawn(step, index, gradient))
        return gradient

    def _drawn(self, step: int, index: int, like: Tensor) -> Tensor:
        key = f"{self._seed} {step} {self._keys[index]}".encode()
        digest = blake2b(key, digest_size=8, person=b"noise").digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") & _LARGEST_SEED)
        std = self._noise / (1 + step) ** self._decay
        drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32)
        return drawn.mul_(std).to(like.device)
