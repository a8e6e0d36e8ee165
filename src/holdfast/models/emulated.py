"""The tiny stand-in model of an emulated device: small tensors, real arithmetic, real gradients."""

import torch
from torch import Tensor, nn

from holdfast.job import Job

WIDTH = 16


class _Numbers(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples made from their index."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        phase = torch.arange(WIDTH) * (index + 1) * 0.37
        return phase.sin(), phase.cos()


def emulated_job(num_layers: int) -> Job:
    return Job(
        layers=[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_layers)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        data=_Numbers(),
        microbatch_size=4,
    )
