"""Workers change places, several at once, whoever dies meanwhile: the result does not show it.

HOLDFAST_SWEEP=100 tries more of it, HOLDFAST_SEED sets what is drawn at random.
"""

import random

import pytest

from helpers.seed import SEED
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps import chaos_slow as slow
from helpers.sweeps.chaos import LAYOUTS, PHASES, QUICK
from holdfast.observability.events import Recovered, WorkerMoved

pytestmark = pytest.mark.wide
STEPS = 24
POINTS = [*LAYOUTS["2x2"].operations, *PHASES]


@pytest.fixture
def swapping(arena, monkeypatch):
    """In all runs but those that are compared with."""
    for layout in LAYOUTS.values():
        arena.undisturbed(layout, steps=STEPS)  # it is kept
    swapping = slow.Swapping()
    swapping.watch(monkeypatch)
    return swapping


def check(arena, table, layout, faults, *settings):
    story = arena.run(layout, faults, *settings, steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=STEPS))
    slow.assert_happened(story)
    table.well(story)
    return story


def of(story, kind):
    return [event for event in story.outcome.events if isinstance(event, kind)]


@pytest.mark.parametrize("layout", ["2x2", "3x2"] if QUICK else LAYOUTS)
def test_several_change_places_at_once_and_nothing_is_run_twice(arena, table, swapping, layout):
    swapping.dice.seed(f"{SEED}-{layout}")
    story = check(arena, table, LAYOUTS[layout], ())
    assert not story.went_back, str(story)
    moved = of(story, WorkerMoved)
    assert len(moved) >= 2, str(story)
    left = [e for e in of(story, Recovered) if e.cause == "move"]
    assert any(len(change.workers) > 1 for change in left), str(story)
    again = {key: who for key, who in checks.who_ran(story.ran).items() if len(who) > 1}
    assert not again, f"{again}\n{story}"
    arena.clean(story)


SINGLES = [
    (layout, worker, step, point)
    for layout in ("2x2", "3x2", "2x3")
    for worker in LAYOUTS[layout].workers
    for step in range(3, 12)
    for point in POINTS
]
random.Random("places").shuffle(SINGLES)


@pytest.mark.parametrize(("layout", "worker", "step", "point"), SINGLES[: 6 if QUICK else 200])
def test_somebody_may_die_meanwhile(arena, table, swapping, layout, worker, step, point):
    """Whoever leaves, copies, enters, or gives its state. If it was the only holder that was left
    meanwhile, all go back; nothing else may differ."""
    swapping.dice.seed(f"{SEED}-{layout}-{worker}-{step}-{point}")
    # Whoever is on the way runs nothing: the first step in which it comes to that point.
    kills = [f"kill {worker} @ {at}.{point}".removesuffix(".begin") for at in range(step, STEPS)]
    arena.clean(check(arena, table, LAYOUTS[layout], kills))
