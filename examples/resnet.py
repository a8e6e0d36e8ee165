"""A small ResNet that tells ten striped patterns apart, each image cut out and lit anew."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu
from torch.optim import SGD

from holdfast import Job

CLASSES, SIDE = 10, 16


class Stripes:
    """Grey images made from their index: stripes at the class's angle, under noise."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        angle = math.pi * (index % CLASSES) / CLASSES
        along = torch.arange(SIDE, dtype=torch.float32)
        stripes = torch.sin(math.cos(angle) * along + math.sin(angle) * along[:, None])
        noise = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(index))
        return augmented((stripes + 0.5 * noise)[None]), torch.tensor(index % CLASSES)


def augmented(image: Tensor) -> Tensor:
    """Torch's generator is seeded for each micro-batch: any worker draws the same."""
    top, left = torch.randint(5, (2,)).tolist()
    moved = pad(image, (2, 2, 2, 2))[:, top : top + SIDE, left : left + SIDE]
    return moved * (0.8 + 0.4 * torch.rand(()))


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.norms[0](self.first(x)))
        return relu(self.norms[1](self.second(inner)) + self.shortcut(x))


def job() -> Job:
    blocks = [Block(1, 16), Block(16, 32, 2), Block(32, 32), Block(32, 64, 2)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    return Job(
        layers=nn.Sequential(*blocks, head),
        loss=cross_entropy,
        optimizer=lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
        data=Stripes(),
        microbatch_size=16,
    )
