"""A small language model whose micro-batches have between no and all real tokens."""

import torch
from torch import Tensor, nn

from holdfast import Job, real_tokens

VOCABULARY, LENGTH, SIZE = 11, 12, 2
NUM_EMPTY = 2  # samples at the beginning that are padding alone: the first micro-batch


class Padded:
    """Sample ``i`` has its own number of real tokens; the other targets are -100."""

    def __init__(self, number: int = 40, num_empty: int = NUM_EMPTY) -> None:
        self._number, self._num_empty = number, num_empty

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = (torch.arange(LENGTH + 1) * (index + 3)) % VOCABULARY
        target = tokens[1:].clone()
        num_real = 0 if index < self._num_empty else 1 + index * 5 % LENGTH
        target[num_real:] = -100
        return tokens[:-1], target


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.inner(x)))


def loss(scores: Tensor, target: Tensor) -> Tensor:
    """A mean over the real tokens: NaN if there are none."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def weighted(**changed: object) -> Job:
    parts = {
        "layers": [nn.Embedding(VOCABULARY, 8), Mixing(), Mixing(), nn.Linear(8, VOCABULARY)],
        "loss": loss,
        "weight": real_tokens,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "data": Padded(),
        "validation": Padded(9),
        "sampler": lambda epoch: range(40),
        "microbatch_size": SIZE,
    }
    return Job(**(parts | changed))


def clipped() -> Job:
    return weighted(clip_norm=0.3)


def empty() -> Job:
    return weighted(data=Padded(num_empty=40))


def with_one_empty_step() -> Job:
    return weighted(data=Padded(num_empty=8))


def negative() -> Job:
    return weighted(weight=lambda target: -1.0 if target.sum() > 0 else 2.0)


def no_number() -> Job:
    return weighted(weight=lambda target: target)
