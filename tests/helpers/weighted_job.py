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
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.inner(x)))


def layers(dropout: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(5)
    between = [Mixing(dropout), Mixing(dropout)]
    return [nn.Embedding(VOCABULARY, 8), *between, nn.Linear(8, VOCABULARY)]


def loss(scores: Tensor, target: Tensor) -> Tensor:
    """A mean over the real tokens: NaN if there are none."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def weighted(**changed: object) -> Job:
    parts = {
        "layers": layers(dropout=0.2),
        "loss": loss,
        "weight": real_tokens,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "data": Padded(),
        "validation": Padded(9),
        "sampler": lambda epoch: range(len(Padded())),
        "microbatch_size": SIZE,
        "clip_norm": 0.3,
    }
    return Job(**(parts | changed))
