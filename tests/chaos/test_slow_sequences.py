"""Lanes change without a stop, whoever dies meanwhile: the result does not show it.

HOLDFAST_SWEEP=100 tries more of it, HOLDFAST_SEED sets what is drawn at random.
"""

import random

import pytest

from helpers import chaos_checks as checks
from helpers import chaos_slow as slow
from helpers.chaos import LAYOUTS, PHASES, QUICK, SEED

STEPS = 9
SAVES = "checkpoint.every_steps=3"
SETTINGS = {
    "as usual": (),
    "all stages step together": ("optimizer.mode=global",),
    "steps are undone": ("recovery.consistency=undo",),
    "with checkpoints": (SAVES,),
    "borders are logged": ("recovery.log=boundary", SAVES),
}


@pytest.fixture(scope="module")
def restless(arena):
    """Lanes change whenever they can, in all runs but those that are compared with."""
    for layout in LAYOUTS.values():
        arena.undisturbed(layout, steps=STEPS)
    restless = slow.Restless()
    with pytest.MonkeyPatch.context() as patch:
        restless.watch(patch)
        yield restless


def check_restless(arena, table, layout, faults, *settings):
    story = arena.run(layout, faults, *settings, steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=STEPS))
    slow.assert_fired(story)
    assert slow.switches(story, "restless"), str(story)
    table.well(story)
    return story


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("layout", ["2x2"] if QUICK else list(LAYOUTS))
def test_lanes_may_change_at_any_time_and_nothing_is_run_twice(
    arena, table, restless, layout, setting
):
    restless.seed(f"{SEED}-{layout}-{setting}")
    story = check_restless(arena, table, LAYOUTS[layout], (), *SETTINGS[setting])
    again = {key: who for key, who in checks.who_ran(story.ran).items() if len(who) > 1}
    assert not again, f"{again}\n{story}"
    assert restless.num_offers >= 2
    arena.clean(story)


POINTS = [*LAYOUTS["2x2"].operations, *PHASES]
SINGLES = [
    (layout, worker, step, point)
    for layout in LAYOUTS
    for worker in LAYOUTS[layout].workers
    for step in (3, 4, 5, 6)
    for point in POINTS
]
random.Random("switches").shuffle(SINGLES)


@pytest.mark.parametrize(
    ("layout", "worker", "step", "point"), SINGLES[:12] if QUICK else SINGLES[:300]
)
def test_a_worker_may_die_while_lanes_change(
    arena, table, restless, layout, worker, step, point
):
    restless.seed(f"{SEED}-{layout}-{worker}-{step}-{point}")
    kill = f"kill {worker} @ {step}.{point}".removesuffix(".begin")
    story = check_restless(arena, table, LAYOUTS[layout], [kill])
    assert not story.went_back, str(story)
    arena.clean(story)


@pytest.mark.parametrize("setting", list(SETTINGS)[1:])
@pytest.mark.parametrize("number", range(1 if QUICK else 20))
def test_so_it_may_whatever_the_settings_are(arena, table, restless, setting, number):
    dice = random.Random(f"{SEED}-{setting}-{number}")
    layout = LAYOUTS[dice.choice(list(LAYOUTS))]
    kills = slow.draw_kills(dice, layout, [dice.choice((3, 4, 5))], POINTS)
    print(f"HOLDFAST_SEED={SEED}: {layout.text} {kills}")  # noqa: T201
    restless.seed(f"{SEED}-{setting}-{number}")
    arena.clean(check_restless(arena, table, layout, kills, *SETTINGS[setting]))


@pytest.mark.parametrize("number", range(3 if QUICK else 60))
def test_many_may_die_and_come_back_while_lanes_change(arena, table, restless, number):
    dice = random.Random(f"{SEED}-restless-{number}")
    layout = LAYOUTS[dice.choice(["3x2", "3x2", "2x3"])]
    faults = slow.draw_kills(dice, layout, [3, 4, 6], POINTS)
    second = dice.choice(["halt", "proceed"])
    faults[1] = f"{faults[1].partition('@')[0]}@ 2.{second}"
    if dice.random() < 0.5:
        faults.append(f"join {faults[0].split()[1]} @ 5")
    print(f"HOLDFAST_SEED={SEED}: {layout.text} {faults}")  # noqa: T201
    restless.seed(f"{SEED}-restless-{number}")
    story = arena.run(layout, faults, steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=STEPS))
    assert len(story.fired) >= 2, str(story)
    table.well(story)
    arena.clean(story)
