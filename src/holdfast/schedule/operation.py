"""Pipeline operations and the facts they need and make: the words every other part speaks.

The dependency rule is stated here and nowhere else. Who runs an operation, and when, is
not known here.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, assert_never

from holdfast.errors import ConfigError


class Kind(StrEnum):
    """The values are on the wire and in files."""

    F = "F"  # forward
    B = "B"  # backward: gradient for the stage's input
    W = "W"  # backward: gradient for the stage's weights
    BW = "BW"  # both backward parts in one go
    R = "R"  # reduce the weight gradients over the stage's holders, then optimizer step


class What(StrEnum):
    """The values are on the wire and in files."""

    ACTIVATION = "activation"  # output of the stage for the micro-batch
    GRADIENT = "gradient"  # gradient for the stage's input of the micro-batch
    WEIGHT = "weight"  # the micro-batch's weight gradient is in an accumulator of the stage
    STEPPED = "stepped"  # the stage's parameters are those of the next step


class Fact(NamedTuple):
    """Something that exists because an operation ran. STEPPED belongs to no micro-batch."""

    what: What
    stage: int
    microbatch: int | None

    def __str__(self) -> str:
        of = "" if self.microbatch is None else f" of micro-batch {self.microbatch}"
        return f"{self.what.value}{of} at stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Shape:
    """``microbatches`` counts one step over all pipelines; each pipeline has an equal share."""

    pipelines: int
    stages: int
    microbatches: int

    def __post_init__(self) -> None:
        for name in ("pipelines", "stages", "microbatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected at least 1")
        if self.microbatches % self.pipelines:
            raise ConfigError(
                f"microbatches = {self.microbatches}: expected a multiple of "
                f"pipelines = {self.pipelines}"
            )

    @property
    def last_stage(self) -> int:
        return self.stages - 1

    @property
    def microbatches_per_pipeline(self) -> int:
        return self.microbatches // self.pipelines


@dataclass(frozen=True, slots=True)
class Op:
    """Work of one stage. Prints and parses as ``2F5``: stage 2, forward, micro-batch 5; ``2R``."""

    stage: int
    kind: Kind
    microbatch: int | None = None

    def __post_init__(self) -> None:
        if (self.kind is Kind.R) != (self.microbatch is None):
            raise ValueError(
                f"not an operation: stage {self.stage} {self.kind.value} "
                f"micro-batch {self.microbatch}; expected a micro-batch for every kind but R"
            )

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


@lru_cache(maxsize=1 << 18)
def operation(stage: int, kind: Kind, microbatch: int | None = None) -> Op:
    """The same object for the same one: plans name each many times."""
    return Op(stage, kind, microbatch)


@lru_cache(maxsize=1 << 18)
def parse_op(text: str) -> Op:
    found = re.fullmatch(r"([0-9]+)(?:(F|BW|B|W)([0-9]+)|R)", text)
    if found is None:
        raise ValueError(f"not an operation: {text!r}; expected e.g. '2F5', '2BW5' or '2R'")
    stage, kind, microbatch = found.groups()
    return Op(int(stage), Kind.R) if kind is None else Op(int(stage), Kind(kind), int(microbatch))


def needs(op: Op, shape: Shape, *, staggered: bool = True) -> tuple[Fact, ...]:
    """What must exist before ``op`` may start.

    ``staggered``: a stage steps when its own weight gradients are there; otherwise
    (global optimizer) every stage waits for those of all stages.
    """
    stage, microbatch = op.stage, op.microbatch
    match op.kind:
        case Kind.F:
            return (Fact(What.ACTIVATION, stage - 1, microbatch),) if stage else ()
        case Kind.B | Kind.BW:
            own = Fact(What.ACTIVATION, stage, microbatch)
            if stage == shape.last_stage:
                return (own,)
            return (own, Fact(What.GRADIENT, stage + 1, microbatch))
        case Kind.W:
            return (Fact(What.GRADIENT, stage, microbatch),)
        case Kind.R:
            waited_for = (stage,) if staggered else range(shape.stages)
            return tuple(
                Fact(What.WEIGHT, of_stage, m)
                for of_stage in waited_for
                for m in range(shape.microbatches)
            )
        case _:
            assert_never(op.kind)


def makes(op: Op) -> tuple[Fact, ...]:
    """What exists once ``op`` has run."""
    stage, microbatch = op.stage, op.microbatch
    match op.kind:
        case Kind.F:
            return (Fact(What.ACTIVATION, stage, microbatch),)
        case Kind.B:
            return (Fact(What.GRADIENT, stage, microbatch),)
        case Kind.W:
            return (Fact(What.WEIGHT, stage, microbatch),)
        case Kind.BW:
            gradient = Fact(What.GRADIENT, stage, microbatch)
            return (gradient, Fact(What.WEIGHT, stage, microbatch))
        case Kind.R:
            return (Fact(What.STEPPED, stage, None),)
        case _:
            assert_never(op.kind)
