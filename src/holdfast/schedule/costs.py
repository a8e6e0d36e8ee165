"""How long each operation takes at each stage. Measured or assumed: nobody here asks which."""

from dataclasses import dataclass
from math import isfinite
from typing import assert_never

from holdfast.errors import ConfigError
from holdfast.schedule.operation import Kind, Op


@dataclass(frozen=True)
class Costs:
    """Durations, one entry a stage. Left empty, ``fused_s`` is input_s + weight_s, ``step_s`` is 0.

    ``link_s`` passes between the end of an operation and another worker's having its result.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    fused_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()
    link_s: float = 0.0

    def __post_init__(self) -> None:
        sums = tuple(b + w for b, w in zip(self.input_s, self.weight_s, strict=False))
        object.__setattr__(self, "fused_s", self.fused_s or sums)
        object.__setattr__(self, "step_s", self.step_s or (0.0,) * len(self.forward_s))
        for name in ("forward_s", "input_s", "weight_s", "fused_s", "step_s"):
            self._check_row(name, getattr(self, name))
        if not (isfinite(self.link_s) and self.link_s >= 0):
            raise ConfigError(f"cost link_s = {self.link_s}: expected a finite number >= 0")
        if not all(seconds > 0 for seconds in self.forward_s):
            raise ConfigError(f"cost forward_s = {self.forward_s}: expected numbers > 0")

    def _check_row(self, name: str, row: tuple[float, ...]) -> None:
        if len(row) != len(self.forward_s):
            raise ConfigError(
                f"cost {name} has {len(row)} stages: expected {len(self.forward_s)}, as forward_s"
            )
        if not all(isfinite(seconds) and seconds >= 0 for seconds in row):
            raise ConfigError(f"cost {name} = {row}: expected finite numbers >= 0")

    @classmethod
    def uniform(
        cls,
        stages: int,
        *,
        forward_s: float = 1.0,
        input_s: float = 1.0,
        weight_s: float = 1.0,
        fused_s: float | None = None,
        step_s: float = 0.0,
        link_s: float = 0.0,
    ) -> "Costs":
        """The same durations at every stage."""
        return cls(
            forward_s=(forward_s,) * stages,
            input_s=(input_s,) * stages,
            weight_s=(weight_s,) * stages,
            fused_s=() if fused_s is None else (fused_s,) * stages,
            step_s=(step_s,) * stages,
            link_s=link_s,
        )

    @property
    def stages(self) -> int:
        return len(self.forward_s)

    def require_stages(self, stages: int) -> None:
        if self.stages != stages:
            raise ConfigError(f"costs are for {self.stages} stages: expected {stages}")

    def duration_s(self, op: Op) -> float:
        match op.kind:
            case Kind.F:
                return self.forward_s[op.stage]
            case Kind.B:
                return self.input_s[op.stage]
            case Kind.W:
                return self.weight_s[op.stage]
            case Kind.BW:
                return self.fused_s[op.stage]
            case Kind.R:
                return self.step_s[op.stage]
            case _:
                assert_never(op.kind)

    def backward_s(self, stage: int) -> float:
        """Whole backward of a micro-batch, split or fused, whichever is shorter."""
        return min(self.fused_s[stage], self.input_s[stage] + self.weight_s[stage])

    def soonest_gradient_s(self, stage: int) -> float:
        """From the start of a backward to the gradient for the stage before."""
        return min(self.fused_s[stage], self.input_s[stage])
