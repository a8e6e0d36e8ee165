"""Random numbers that are drawn in backward follow from step, micro-batch and layer alone."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from helpers.harness.module_cases import Sums, same
from holdfast.runtime.stage.stage import Stage

WIDTH, MICROBATCHES = 4, range(3)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch's own, of a first layer: its input needs no gradient
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]


def torchs() -> float:
    return torch.rand(()).item()


def numpys() -> float:
    return float(numpy.random.rand())


DRAWS: dict[str, Callable[[], float]] = {
    "torch": torchs,
    "python": random.random,
    "numpy": numpys,
}


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Callable[[], float]) -> Tensor:
        ctx.draw = draw
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] + ctx.draw(), None


class Noisy(nn.Module):
    """Linear layers with noise on the gradient, in one of the places where it can be."""

    def __init__(self, place: str, draw: Callable[[], float], drawn: list[float]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place = place
        self.draw = lambda: drawn.append(draw()) or drawn[-1]
        if place == "parameter":
            self.first.weight.register_hook(self.noised)
        if place == "module":
            self.register_full_backward_hook(self.noised_input)

    def noised(self, gradient: Tensor) -> Tensor:
        return gradient + self.draw()

    def noised_input(self, _: nn.Module, inputs: Any, outputs: Any) -> tuple[Tensor | None]:
        noise = self.draw()
        return (None if inputs[0] is None else inputs[0] + noise,)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.place == "function":
            y = Noise.apply(y, self.draw)
        y = self.second(y)
        if self.place == "output":
            y.register_hook(self.noised)
        return y


class PassesOn(nn.Module):
    """Two outputs, of which the first is the input as it came."""

    def __init__(self, noisy: nn.Module) -> None:
        super().__init__()
        self.noisy = noisy

    def forward(self, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.noisy(x)


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


def layers(place: str, draw: str, drawn: list[float]) -> list[nn.Module]:
    torch.manual_seed(0)
    noisy = [Noisy(place, DRAWS[draw], drawn) for _ in range(4)]
    return [noisy[0], noisy[1], PassesOn(noisy[2]), Sum(), noisy[3]]


def gradients(
    place: str, draw: str, boundaries: tuple[int, ...], *, split: bool, all_first: bool
) -> tuple[dict[str, Tensor], list[float]]:
    drawn: list[float] = []
    made = layers(place, draw, drawn)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        noisy: Tensor = Noise.apply(output, made[0].draw)
        return noisy.sum()

    stages = [
        Stage(
            made[start:stop],
            first_layer=start,
            unpack=True,
            loss=loss if stop == len(made) else None,
            sink=Sums(),
        )
        for start, stop in pairwise([0, *boundaries, len(made)])
    ]
    order = [("F", m) for m in MICROBATCHES] + [("B", m) for m in MICROBATCHES]
    if not all_first:
        order.sort(key=lambda op: (op[1], -ord(op[0])))
    for kind, microbatch in order:
        (forward if kind == "F" else backward)(stages, microbatch, split)
    found = {s.slots[i].key: total for s in stages for i, total in s.sink.sums.items()}
    return found, drawn


def forward(stages: list[Stage], microbatch: int, split: bool) -> None:
    data: tuple[Tensor, ...] = (torch.full((2, WIDTH), 1.0 + microbatch),)
    for stage in stages:
        data = stage.forward(5, microbatch, data, torch.zeros(()), split=split)


def backward(stages: list[Stage], microbatch: int, split: bool) -> None:
    given: tuple[Tensor | None, ...] = ()
    for stage in reversed(stages):
        given = (stage.backward_input if split else stage.backward)(microbatch, given)
    for stage in stages if split else ():
        stage.backward_weight(microbatch)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("place", ["function", "output", "parameter", "module"])
def test_neither_cut_nor_order_nor_split_shows_in_what_a_backward_draws(
    place: str, draw: str
) -> None:
    whole, drawn = gradients(place, draw, (), split=False, all_first=False)
    assert len(drawn) == len(MICROBATCHES) * (4 + 1)
    assert len(set(drawn)) == len(drawn)
    for boundaries in [(), (1,), (3,), (1, 2, 3, 4)]:
        for split in (False, True):
            other, _ = gradients(place, draw, boundaries, split=split, all_first=True)
            assert other.keys() == whole.keys()
            assert all(same(whole[key], other[key]) for key in whole)
