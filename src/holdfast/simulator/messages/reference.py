"""Stand-in arithmetic of training, and what an undisturbed run comes to.

A state, an activation or a gradient is one number made of all that went into it. So a micro-batch
that is counted twice, left out, or computed with other weights changes every later number.
"""

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.protocol.records import VerdictRow
from holdfast.schedule.operation import Shape

_MASK = (1 << 61) - 1
_FACTOR = 0x9E3779B97F4A7C15
_INPUT, _TARGET, _FORWARD, _BACKWARD, _WEIGHT, _UPDATE = range(1, 7)

GOOD = VerdictRow(1.0, None, False)
CLIPPED = VerdictRow(3.0, 0.5, False)
SKIPPED = VerdictRow(float("inf"), None, True)


def mixed(*numbers: int) -> int:
    """One number of several; all of them count, and so does their order."""
    found = 0x2545F491
    for number in numbers:
        found = ((found ^ number) * _FACTOR) & _MASK
        found ^= found >> 29
    return found


def first_state(stage: int) -> int:
    return mixed(stage + 1)


def loaded(step: int, microbatch: int) -> int:
    """Input of the first stage."""
    return mixed(_INPUT, step, microbatch)


def forward(given: int, state: int) -> int:
    return mixed(_FORWARD, given, state)


def of_loss(output: int) -> int:
    """The gradient that the last stage begins its backward with."""
    return mixed(_TARGET, output)


def backward(gradient: int, given: int, state: int) -> int:
    return mixed(_BACKWARD, gradient, given, state)


def weight_gradient(gradient: int, given: int, state: int) -> int:
    return mixed(_WEIGHT, gradient, given, state)


def summed(one: int, other: int) -> int:
    """In any order."""
    return (one + other) & _MASK


def updated(state: int, total: int, verdict: VerdictRow) -> int:
    if verdict.skip:
        return state
    return mixed(_UPDATE, state, total, 0 if verdict.scale is None else 1)


def loss_of(output: int) -> float:
    return (output % 1000) / 1000.0


class StepTotal(NamedTuple):
    """What a stage's step comes to: the same on all its holders."""

    step: int
    attempt: int
    total: int
    losses: tuple[tuple[int, float], ...]  # of the last stage
    is_nonfinite: bool = False


@dataclass
class UndisturbedRun:
    """``bad``: steps whose gradient is clipped or left out."""

    shape: Shape
    bad: dict[int, VerdictRow]

    def __post_init__(self) -> None:
        self._states = [[first_state(stage)] for stage in range(self.shape.stages)]
        self._totals: list[list[int]] = []

    def verdict(self, step: int) -> VerdictRow:
        return self.bad.get(step, GOOD)

    def is_nonfinite(self, stage: int, step: int) -> bool:
        """Seen by one stage alone: the others hear of it."""
        return self.verdict(step).skip and stage == step % self.shape.stages

    def state(self, stage: int, version: int) -> int:
        """After so many steps."""
        while len(self._totals) < version:
            self._train(len(self._totals))
        return self._states[stage][version]

    def total(self, stage: int, step: int) -> int:
        self.state(stage, step + 1)
        return self._totals[step][stage]

    def _train(self, step: int) -> None:
        stages = range(self.shape.stages)
        states = [self._states[stage][step] for stage in stages]
        totals = [0] * self.shape.stages
        for microbatch in range(self.shape.microbatches):
            given = [loaded(step, microbatch)]
            for state in states:
                given.append(forward(given[-1], state))
            gradient = of_loss(given[-1])
            for stage in reversed(stages):
                put = weight_gradient(gradient, given[stage], states[stage])
                totals[stage] = summed(totals[stage], put)
                gradient = backward(gradient, given[stage], states[stage])
        self._totals.append(totals)
        for stage in stages:
            new = updated(states[stage], totals[stage], self.verdict(step))
            self._states[stage].append(new)
