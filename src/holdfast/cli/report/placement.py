"""What ``holdfast plan --machines`` prints: who runs where, and what each machine's loss costs."""

import textwrap
from collections.abc import Iterator, Sequence

from holdfast.cluster import WorkerId
from holdfast.planner.place.losing import LossCosts, MachineLoss
from holdfast.planner.place.placement import MachinePlacement, number_words, stage_words
from holdfast.planner.plan import Plan

_MOST_MACHINES = 64  # that are listed
_MOST_RUNS = 3  # of neighbours that are named
_HEAD = ("machine", "workers", "stages", "spare", "if it is lost (predicted)")
_LEAST_WORDS = 30  # characters of the last column


def report(plan: Plan, placement: MachinePlacement, *, refined: bool, width: int) -> Iterator[str]:
    """``refined``: whether the plans without a machine are."""
    number = len(placement.machines)
    head = f"placed on {number} machine{'' if number == 1 else 's'}: {placement.reason}"
    yield from textwrap.wrap(head, width, break_on_hyphens=False)
    costs = LossCosts(placement, plan.fleet.problem, refined=refined)
    listed = [machine.name for machine in placement.machines[:_MOST_MACHINES]]
    rows = [_row(placement, costs.of(name), plan.period_s) for name in listed]
    yield from _table([_HEAD, *rows], width)
    if number > len(listed):
        yield f"... and {number - len(listed)} more machines"


Row = tuple[str, str, str, str, str]


def _row(placement: MachinePlacement, loss: MachineLoss, period_s: float) -> Row:
    workers = placement.by_machine[loss.machine]
    stages = sorted(set(map(placement.stage_of, workers)))
    return (
        loss.machine,
        _worker_words(workers) or "-",
        number_words(stages) or "-",
        str(placement.spare[loss.machine]),
        loss_words(loss, placement.pipelines, period_s),
    )


def _table(rows: Sequence[Row], width: int) -> Iterator[str]:
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        name, workers, stages, spare, words = row
        start = (
            f"{name:<{wide[0]}}  {workers:<{wide[1]}}  {stages:<{wide[2]}}  {spare:>{wide[3]}}  "
        )
        room = max(width - len(start), _LEAST_WORDS)
        first, *more = textwrap.wrap(words, room, break_on_hyphens=False)
        yield start + first
        yield from (" " * len(start) + line for line in more)


def loss_words(loss: MachineLoss, pipelines: int, period_s: float) -> str:
    """``period_s``: with all who live now."""
    if not loss.workers:
        return "nothing: it runs no worker"
    lost = f"{stage_words(loss.lost_stages)} lost" if loss.lost_stages else ""
    if not loss.survives:
        left, stages = sum(loss.holders) + len(loss.started_again), len(loss.holders)
        room = f"room for {left} worker{'' if left == 1 else 's'}"
        return f"the run stops: {lost}, and {room} is too little for {stages} stages"
    words = []
    if lost:
        words.append(f"{lost}: rebuilt from a log, or all go back to a checkpoint")
    if loss.period_s is not None:
        words.append(f"{loss.period_s:.6g} s a step instead of {period_s:.6g}")
    if loss.refilled_period_s is not None:
        again = _worker_words(loss.started_again)
        words.append(f"{loss.refilled_period_s:.6g} s with {again} started again elsewhere")
    if not lost:
        least, most = min(loss.holders), max(loss.holders)
        keeps = f"each stage keeps {least}" if least == most else f"stages keep {least} to {most}"
        words.append(f"{keeps} of {pipelines} holders")
    return "; ".join(words)


def _worker_words(workers: Sequence[WorkerId]) -> str:
    """Neighbours as one, e.g. ``0.0-0.3, 2.1``."""
    runs: list[list[WorkerId]] = []
    for worker in workers:
        if runs and runs[-1][-1] == (worker.pipeline, worker.stage - 1):
            runs[-1].append(worker)
        else:
            runs.append([worker])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:_MOST_RUNS]]
    more = sum(map(len, runs[_MOST_RUNS:]))
    return ", ".join([*said, *([f"{more} more"] if more else [])])
