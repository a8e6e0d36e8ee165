"""Nobody holds a stage any more: it is rebuilt from the log, and nobody else runs anything again.

HOLDFAST_SWEEP and HOLDFAST_SEED as in test_kill_everywhere.
"""

import random
from dataclasses import dataclass, replace

import pytest

from helpers import chaos_checks as checks
from helpers.chaos import LAYOUTS, PER_CENT, PHASES, SAVE, Layout
from holdfast.cluster import parse_worker

ONE = Layout("1x4", 4, "[1, 2, 3]", 0.55)
TWO = replace(LAYOUTS["2x3"])
STEPS = 6
AROUND = (3, 4, 5)  # steps, from 1; checkpoints are after the third and the last
LOG = ("recovery.log=boundary", "checkpoint.every_steps=3")


@dataclass(frozen=True)
class Loss:
    """All holders of a stage die: the first at a point, the others when they are told to halt."""

    layout: Layout
    victims: tuple[str, ...]
    step: int
    point: str

    @property
    def faults(self) -> list[str]:
        first, *others = self.victims
        where = f"{self.step}.{self.point}"
        return [f"kill {first} @ {where}", *(f"kill {v} @ {where}" for v in others)]

    def __str__(self) -> str:
        return f"{self.layout.text} {' '.join(self.victims)} @ {self.step}.{self.point}"


def losses(layout: Layout) -> list[Loss]:
    found = []
    for stage in range(layout.stages):
        victims = tuple(w for w in layout.workers if parse_worker(w).stage == stage)
        for step in AROUND:
            found += [Loss(layout, victims, step, p) for p in [*layout.operations, *PHASES, SAVE]]
    random.Random("lost stages").shuffle(found)
    return found


def sample(cases: list[Loss], per_cent: float) -> list[Loss]:
    return cases[:: max(1, round(100 / per_cent))]


def check_loss(arena, table, loss: Loss, *settings: str) -> None:
    story = arena.run(loss.layout, loss.faults, *LOG, *settings, steps=STEPS)
    table.add("points", story)
    checks.assert_same(story, arena.undisturbed(loss.layout, steps=STEPS))
    checks.assert_fired(story)
    assert not story.went_back, str(story)
    checks.assert_neighbours_run_nothing_again(story, loss.victims)
    table.well(story)
    arena.clean(story)


@pytest.mark.parametrize("loss", sample(losses(ONE), PER_CENT), ids=str)
def test_a_stage_without_a_holder_is_rebuilt_and_nobody_else_runs_anything_again(
    arena, table, loss
):
    check_loss(arena, table, loss)


@pytest.mark.parametrize("loss", sample(losses(TWO), PER_CENT), ids=str)
def test_both_holders_of_a_stage_may_die(arena, table, loss):
    check_loss(arena, table, loss)
