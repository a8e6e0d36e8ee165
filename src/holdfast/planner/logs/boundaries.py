"""From what a run has measured to the boundaries that its workers log, and how much each may write.

A thin layer over log_groups for the coordinator. Does not know messages or files.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import ConfigError
from holdfast.planner.logs.groups import best_groups, size_words
from holdfast.planner.logs.replay_time import ReplayCosts

# Of the budget, for what is not boundary tensors: headers of frames, verdicts.
_SPARE_SHARE = 0.02
_USUAL_BYTES_PER_S = 1e9


class LogChoice(NamedTuple):
    boundaries: list[int]  # logged; boundary b is the one after stage b
    limit_bytes: list[int]  # for one worker of each stage; 0: no limit
    reason: str


def boundaries_for(
    *,
    budget_bytes: int | None,
    interval_steps: int,
    activation_bytes: Sequence[int],
    gradient_bytes: Sequence[int],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    num_microbatches: int,
    num_helpers: int,
    holders: Sequence[int] = (),
    other_bytes: Sequence[int] = (),
    log_bytes_per_s: float = _USUAL_BYTES_PER_S,
) -> LogChoice:
    """Bytes are of a whole step: a boundary's of all its micro-batches, whoever sends them.

    ``holders``: live workers of each stage, who share its log alike (none given: one each).
    ``other_bytes``: what a stage logs besides, such as gradients of tied parameters.
    Going back to the checkpoint is the last resort: some boundary is logged if any fits.
    """
    num_stages = len(forward_s)
    others = list(other_bytes) or [0] * num_stages
    sharers = list(holders) or [1] * num_stages
    _check_lengths(sharers, others, num_stages)
    if budget_bytes is None:
        return LogChoice(list(range(num_stages - 1)), [0] * num_stages, "no budget: all boundaries")
    one_by_one_s = num_microbatches * (sum(forward_s) + sum(backward_s))
    read_s = (sum(activation_bytes) + sum(gradient_bytes)) / log_bytes_per_s
    costs = ReplayCosts(
        forward_s=tuple(forward_s),
        backward_s=tuple(backward_s),
        activation_bytes=tuple(activation_bytes),
        gradient_bytes=tuple(gradient_bytes),
        num_microbatches=num_microbatches,
        num_helpers=max(1, num_helpers),
        interval_steps=interval_steps,
        lost_steps=interval_steps / 2,
        log_bytes_per_s=log_bytes_per_s,
        disk_bytes_per_s=log_bytes_per_s,
        restart_s=1 + interval_steps * (one_by_one_s + read_s),  # longer than any replay
    )
    spare = int(budget_bytes * (1 - _SPARE_SHARE)) - interval_steps * sum(others)
    if spare < 0:
        reason = f"a budget of {size_words(budget_bytes)} is too small even for tied gradients"
        return LogChoice([], _limits(costs, [], others, sharers, budget_bytes), reason)
    best = best_groups(costs, spare)
    boundaries = list(best.boundaries)
    return LogChoice(
        boundaries, _limits(costs, boundaries, others, sharers, budget_bytes), best.reason
    )


def _check_lengths(holders: Sequence[int], others: Sequence[int], num_stages: int) -> None:
    if not len(others) == len(holders) == num_stages:
        raise ConfigError(
            f"holders of {len(holders)} and other_bytes of {len(others)} stages: "
            f"expected {num_stages}, as forward_s"
        )


def _limits(
    costs: ReplayCosts,
    boundaries: Sequence[int],
    others: Sequence[int],
    holders: Sequence[int],
    budget_bytes: int,
) -> list[int]:
    """Each stage what it needs for an interval, and an equal part of what is over."""
    needs = [costs.interval_steps * other for other in others]
    for boundary in boundaries:
        needs[boundary] += costs.interval_steps * costs.activation_bytes[boundary]
        needs[boundary + 1] += costs.interval_steps * costs.gradient_bytes[boundary]
    over = max(0, budget_bytes - sum(needs)) // len(needs)
    # A limit of 0 would mean none.
    return [max(1, (need + over) // max(1, n)) for need, n in zip(needs, holders, strict=True)]
