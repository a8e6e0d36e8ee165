"""Random faults that are the same every time, from one seed: kills and joins, and slowness.

Plans on its own bookkeeping of who is there. It does not know how long a join takes, nor who
changed sides: in a real run a stage may still lose its last holder.
"""

from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.errors import Argument, ConfigError
from holdfast.faults.fault import PHASES, Fault, FaultKind
from holdfast.faults.rng import SeededRandom
from holdfast.faults.slowdowns import slowdowns

MAX_JOIN_DELAY_STEPS = 3
STEP_S = 60.0  # of the time in which slowness was studied: a slow worker is so for 6 to 12 steps
_EXAMPLE = "seed=1,rate=0.05"
_LAST_PHASE = "settled"  # the later ones do not come in every step
_STEP_PHASES = tuple(PHASES)[: tuple(PHASES).index(_LAST_PHASE) + 1]


@dataclass(frozen=True, slots=True)
class Chaos:
    seed: int
    rate: float = 0.0  # probability that a worker is killed in a step
    slow: float = 0.0  # probability that something becomes slow in a step


def parse_chaos(text: str) -> Chaos:
    """Read ``seed=1,rate=0.05`` and ``seed=1,slow=0.05``, or both."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in ("seed", "rate", "slow") or not equals:
            raise _refusal(text, f"cannot read {part.strip()!r}")
        if key in values:
            raise _refusal(text, f"{key} is given twice")
        values[key] = value
    if "seed" not in values:
        raise _refusal(text, "lacks seed")
    if len(values) == 1:
        raise _refusal(text, "lacks rate (of deaths) or slow (of slowness)")
    seed = _parse_seed(text, values.pop("seed"))
    return Chaos(seed, **{key: _parse_rate(text, key, value) for key, value in values.items()})


def _parse_seed(text: str, value: str) -> int:
    # Not below 0: Python's generator takes a seed and its negative for the same.
    if not (value.isascii() and value.isdigit() and len(value) <= 19 and int(value) < 2**63):
        raise _refusal(text, f"seed {value!r} is no whole number in 0 .. 2^63-1")
    return int(value)


def _parse_rate(text: str, key: str, value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        raise _refusal(text, f"{key} {value!r} is no number") from None
    if not 0 < rate <= 1:
        raise _refusal(text, f"{key} {value} is no probability above 0 and at most 1")
    return rate


def _refusal(text: str, why: str) -> ConfigError:
    return ConfigError(Argument("chaos", repr(text)), f": {why}; write e.g. {_EXAMPLE}")


def chaos_faults(
    chaos: Chaos,
    pipelines: int,
    stages: int,
    steps: int,
    *,
    operations: int = 1,
    first_step: int = 0,
    transfer_s: float = 0.01,
) -> tuple[Fault, ...]:
    """Kills, each followed by a join of the same worker 1 to 3 steps later; then slowness.

    ``operations``: how many of each kind a worker runs in a step; a kill at a later one would
    never happen. ``transfer_s``: what a transfer takes, so that a slow link is felt.
    """
    deaths = _deaths(chaos, pipelines, stages, steps, operations, first_step)
    slow = slowdowns(
        chaos.seed,
        pipelines,
        stages,
        steps,
        STEP_S,
        rate=chaos.slow,
        transfer_s=transfer_s,
        first_step=first_step,
    )
    return (*deaths, *slow)


def _deaths(
    chaos: Chaos, pipelines: int, stages: int, steps: int, operations: int, first_step: int
) -> list[Fault]:
    """Nobody is killed in the last step, where no join can follow."""
    rng = SeededRandom(chaos.seed)
    workers = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    back_at: dict[WorkerId, int] = {}  # the first step in which it is surely there again
    faults: list[Fault] = []
    for step in range(first_step, steps - 1):
        for worker in workers:
            if back_at.get(worker, 0) > step or not rng.hits(chaos.rate):
                continue
            point = _point(rng, operations)
            delay = 1 + rng.below(min(MAX_JOIN_DELAY_STEPS, steps - 1 - step))
            others = [w for w in workers if w.stage == worker.stage and w != worker]
            if all(back_at.get(other, 0) > step for other in others):
                continue  # the last holder of its stage
            faults.append(Fault(FaultKind.KILL, worker, step, point))
            faults.append(Fault(FaultKind.JOIN, worker, step + delay))
            back_at[worker] = step + delay + 1
    return faults


def _point(rng: SeededRandom, operations: int) -> str:
    """As often a phase as an operation, however many operations there are."""
    if rng.hits(0.5):
        return rng.one_of(_STEP_PHASES)
    kind, number = rng.one_of("FBW"), rng.below(operations)
    return f"{kind}{number}{'.done' if rng.hits(0.5) else ''}"
