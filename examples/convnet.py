"""A small convolutional net with batch normalisation that tells ten striped patterns apart."""

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD

from holdfast import Job

CLASSES, SIDE = 10, 16


class Stripes:
    """Grey images made from their index: stripes at the class's angle, under noise."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        label = index % CLASSES
        angle = math.pi * label / CLASSES
        along = torch.arange(SIDE, dtype=torch.float32)
        stripes = torch.sin(math.cos(angle) * along + math.sin(angle) * along[:, None])
        noise = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(index))
        return (stripes + 0.5 * noise)[None], torch.tensor(label)


def convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def job() -> Job:
    return Job(
        layers=nn.Sequential(
            convolution(1, 16),
            convolution(16, 32, stride=2),
            convolution(32, 32),
            convolution(32, 64, stride=2),
            convolution(64, 64),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)),
        ),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
        data=Stripes(),
        microbatch_size=16,
    )
