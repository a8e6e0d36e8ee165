"""How fast a run is, in what its job has: tokens, or samples."""

from collections.abc import Collection

from holdfast.observability.events import RunStarted, StepFinished


def tokens_per_s(steps: Collection[StepFinished]) -> float | None:
    took_s = sum(step.took_s for step in steps)
    return sum(step.tokens for step in steps) / took_s if took_s else None


def counted(run: RunStarted | None, steps: Collection[StepFinished]) -> str:
    """What the tokens of these steps are: "tokens", or "samples" if a sample has only one."""
    num_samples = run.samples * len(steps) if run else 0
    return "samples" if 0 < sum(step.tokens for step in steps) <= num_samples else "tokens"
