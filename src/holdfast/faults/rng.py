"""Random numbers that are the same for a seed on every machine and in every Python.

Knows nothing of what is drawn.
"""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class SeededRandom:
    """Only of ``random()``: its sequence alone is promised to stay the same in every Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def hits(self, rate: float) -> bool:
        return self._random() < rate

    def below(self, limit: int) -> int:
        return int(self._random() * limit)

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self._random()

    def one_of(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def weighted(self, weights: Mapping[_T, float]) -> _T:
        """Keys by their weights, of which one at least is above 0."""
        left = self._random() * sum(weights.values())
        likely = [key for key, weight in weights.items() if weight > 0]
        for key in likely[:-1]:
            left -= weights[key]
            if left < 0:
                return key
        return likely[-1]
