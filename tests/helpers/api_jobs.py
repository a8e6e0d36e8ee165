"""A small job as a function of a module, for whoever trains from Python."""

import torch
from torch import nn

from holdfast import Job

WIDTH = 4


class Numbers:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        phase = torch.arange(WIDTH) * (index + 1) * 0.37
        return phase.sin(), phase.cos()


def small() -> Job:
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return Job(
        layers=[first, nn.BatchNorm1d(WIDTH), nn.Tanh(), last],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        data=Numbers(),
        microbatch_size=2,
    )
