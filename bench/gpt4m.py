"""The job of bench/overhead.py: a GPT of 4.2 million parameters on random tokens."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast.job import Job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import next_token_loss

VOCABULARY, CONTEXT, SAMPLES = 2048, 128, 4


class RandomTokens(Dataset[tuple[Tensor, Tensor]]):
    """Skewed, so that there is something to learn; made once, so that loading costs nothing."""

    def __init__(self) -> None:
        uniform = torch.rand(512, CONTEXT + 1, generator=torch.Generator().manual_seed(1))
        self._tokens = (uniform**3 * VOCABULARY).long()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._tokens[index, :-1], self._tokens[index, 1:]


def job() -> Job:
    return Job(
        layers=gpt_layers(
            vocabulary=VOCABULARY, context=CONTEXT, width=256, heads=4, depth=4, dropout=0.0
        ),
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
        data=RandomTokens(),
        microbatch_size=SAMPLES,
        cut=(3,),
    )
