"""Random faults that are the same every time: kills and joins of a whole run, from one seed.

Plans on its own bookkeeping of who is there. It does not know how long a join takes, nor who
changed sides: in a real run a stage may still lose its last holder.
"""

import random
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.faults.fault import PHASES, Fault, FaultKind

MAX_JOIN_DELAY_STEPS = 3
_EXAMPLE = "seed=1,rate=0.05"
_LAST_PHASE = "settled"  # the later ones do not come in every step
_STEP_PHASES = tuple(PHASES)[: tuple(PHASES).index(_LAST_PHASE) + 1]


@dataclass(frozen=True, slots=True)
class Chaos:
    seed: int
    rate: float  # probability that a worker is killed in a step


def parse_chaos(text: str) -> Chaos:
    """Read ``seed=1,rate=0.05``."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in ("seed", "rate") or not equals:
            raise _refusal(text, f"cannot read {part.strip()!r}")
        if key in values:
            raise _refusal(text, f"{key} is given twice")
        values[key] = value
    if missing := [key for key in ("seed", "rate") if key not in values]:
        raise _refusal(text, f"lacks {' and '.join(missing)}")
    return Chaos(_parse_seed(text, values["seed"]), _parse_rate(text, values["rate"]))


def _parse_seed(text: str, value: str) -> int:
    # Not below 0: Python's generator takes a seed and its negative for the same.
    if not (value.isascii() and value.isdigit() and len(value) <= 19 and int(value) < 2**63):
        raise _refusal(text, f"seed {value!r} is no whole number in 0 .. 2^63-1")
    return int(value)


def _parse_rate(text: str, value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        raise _refusal(text, f"rate {value!r} is no number") from None
    if not 0 < rate <= 1:
        raise _refusal(text, f"rate {value} is no probability above 0 and at most 1")
    return rate


def _refusal(text: str, why: str) -> ConfigError:
    return ConfigError(f"--chaos {text!r}: {why}; write e.g. {_EXAMPLE}")


def chaos_faults(
    chaos: Chaos,
    pipelines: int,
    stages: int,
    steps: int,
    *,
    operations: int = 1,
    first_step: int = 0,
) -> tuple[Fault, ...]:
    """Kills, each followed by a join of the same worker 1 to 3 steps later.

    ``operations``: how many of each kind a worker runs in a step; a kill at a later one would
    never happen. Nobody is killed in the last step, where no join can follow.
    """
    dice = _Dice(chaos.seed)
    workers = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    back_at: dict[WorkerId, int] = {}  # the first step in which it is surely there again
    faults: list[Fault] = []
    for step in range(first_step, steps - 1):
        for worker in workers:
            if back_at.get(worker, 0) > step or not dice.hits(chaos.rate):
                continue
            point = dice.point(operations)
            delay = 1 + dice.below(min(MAX_JOIN_DELAY_STEPS, steps - 1 - step))
            others = [w for w in workers if w.stage == worker.stage and w != worker]
            if all(back_at.get(other, 0) > step for other in others):
                continue  # the last holder of its stage
            faults.append(Fault(FaultKind.KILL, worker, step, point))
            faults.append(Fault(FaultKind.JOIN, worker, step + delay))
            back_at[worker] = step + delay + 1
    return tuple(faults)


class _Dice:
    """Only of ``random()``: its sequence alone is promised to stay the same in every Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def hits(self, rate: float) -> bool:
        return self._random() < rate

    def below(self, limit: int) -> int:
        return int(self._random() * limit)

    def point(self, operations: int) -> str:
        """As often a phase as an operation, however many operations there are."""
        if self.hits(0.5):
            return _STEP_PHASES[self.below(len(_STEP_PHASES))]
        kind, number = "FBW"[self.below(3)], self.below(operations)
        return f"{kind}{number}{'.done' if self.hits(0.5) else ''}"
