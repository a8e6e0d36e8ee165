"""The job of bench/memory.py: a GPT of any size on random tokens. Its arguments say which."""

import argparse
from typing import NamedTuple

import torch
from torch import nn

from gpt4m import RandomTokens
from holdfast.job import Job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import next_token_loss

VOCABULARY, CONTEXT, HEADS = 2048, 128, 8


class Size(NamedTuple):
    width: int
    depth: int
    stages: int

    @staticmethod
    def of(parameters: int, stages: int) -> "Size":
        """``depth`` fits the stages; a block has 12 x width^2 parameters."""
        depth = stages * (1 if parameters < 10_000_000 else 5)
        width = round((parameters / (12 * depth)) ** 0.5 / 64) * 64
        return Size(max(64, width), depth, stages)

    @property
    def cut(self) -> tuple[int, ...]:
        """Embedding and head go with their neighbours."""
        return tuple(1 + self.depth // self.stages * stage for stage in range(1, self.stages))

    def layers(self) -> list[nn.Module]:
        return gpt_layers(
            vocabulary=VOCABULARY, context=CONTEXT, width=self.width, heads=HEADS, depth=self.depth
        )


def job(args: list[str]) -> Job:
    parser = argparse.ArgumentParser()
    for name in Size._fields:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    given = parser.parse_args(args)
    size = Size(given.width, given.depth, given.stages)
    return Job(
        layers=size.layers(),
        loss=next_token_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        data=RandomTokens(),
        microbatch_size=given.samples,
        cut=size.cut,
    )
