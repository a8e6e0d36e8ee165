"""Lanes change without a stop, whoever dies meanwhile: the result does not show it.

HOLDFAST_SWEEP=100 tries more of it, HOLDFAST_SEED sets what is drawn at random.
"""

import random

import pytest

from helpers.seed import SEED
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps import chaos_slow as slow
from helpers.sweeps.chaos import LAYOUTS, PHASES, QUICK, Arena
from helpers.wide import every, first
from holdfast.observability.events import WorkerLost

STEPS = 9
SAVES = "checkpoint.every_steps=3"
SETTINGS = {
    "as usual": (),
    "all stages step together": ("optimizer.mode=global",),
    "steps are undone": ("recovery.consistency=undo",),
    "with checkpoints": (SAVES,),
    "boundaries are logged": ("recovery.log=boundary", SAVES),
}


@pytest.fixture
def restless(arena, monkeypatch):
    """Lanes change whenever they can, in all runs but those that are compared with."""
    for layout in LAYOUTS.values():
        arena.undisturbed(layout, steps=STEPS)  # it is kept
    restless = slow.Restless()
    restless.watch(monkeypatch)
    return restless


def check_restless(arena, table, layout, faults, *settings):
    story = arena.run(layout, faults, *settings, steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=STEPS))
    slow.assert_happened(story)
    assert slow.switches(story, "restless"), str(story)
    table.well(story)
    return story


@pytest.mark.parametrize("setting", first(1, SETTINGS))
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
    ("layout", "worker", "step", "point"), first(1, SINGLES[: 8 if QUICK else 300])
)
def test_a_worker_may_die_while_lanes_change(arena, table, restless, layout, worker, step, point):
    restless.seed(f"{SEED}-{layout}-{worker}-{step}-{point}")
    kill = f"kill {worker} @ {step}.{point}".removesuffix(".begin")
    story = check_restless(arena, table, LAYOUTS[layout], [kill])
    assert not story.went_back, str(story)
    arena.clean(story)


@pytest.mark.parametrize("setting", every(3, list(SETTINGS)[1:]))
@pytest.mark.parametrize("number", range(1 if QUICK else 20))
def test_so_it_may_whatever_the_settings_are(arena, table, restless, setting, number):
    dice = random.Random(f"{SEED}-{setting}-{number}")
    layout = LAYOUTS[dice.choice(list(LAYOUTS))]
    kills = slow.draw_kills(dice, layout, [dice.choice((3, 4, 5))], POINTS)
    print(f"HOLDFAST_SEED={SEED}: {layout.text} {kills}")  # noqa: T201
    restless.seed(f"{SEED}-{setting}-{number}")
    arena.clean(check_restless(arena, table, layout, kills, *SETTINGS[setting]))


@pytest.mark.parametrize("number", first(1, range(2 if QUICK else 60)))
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
    assert sum(isinstance(event, WorkerLost) for event in story.outcome.events) >= 2, str(story)
    table.well(story)
    arena.clean(story)


# --- somebody is really slow ---

SLOW_STEPS = 45
LASTING = "slow 1.0 @ 13-45 x6"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """An arena in which nobody is restless; operations take their time by sleeping."""
    return Arena(tmp_path_factory.mktemp("slow"))


def run_slow(calm, table, layout, faults, *settings):
    usual = (slow.EMULATED, "checkpoint.every_steps=10")
    story = calm.run(layout, faults, *usual, *settings, steps=SLOW_STEPS)
    table.add("others", story)
    expected = calm.undisturbed(layout, slow.EMULATED, "mitigation.mode=off", steps=SLOW_STEPS)
    checks.assert_same(story, expected)
    slow.assert_happened(story)
    table.well(story)
    return story


def test_a_slow_worker_is_found_and_planned_around(calm, table):
    """On a machine that is far too busy all look slow: one of three runs will do."""
    for _ in range(3):
        story = run_slow(calm, table, LAYOUTS["2x2"], [LASTING])
        found = "1.0" in slow.diagnosed(story) and "re-plan" in slow.actions(story)
        if found and slow.switches(story):
            calm.clean(story)
            return
    pytest.fail(str(story))


KILLS = [
    f"kill {worker} @ {step}.{point}"
    for worker in ("0.0", "1.0", "0.1", "1.1")
    for step in range(16, 26)
    for point in ("F0", "B1.done", "W0", "reduce", "told", "half", "settled")
]
random.Random("slow kills").shuffle(KILLS)


@pytest.mark.parametrize("kill", first(1, KILLS[: 2 if QUICK else 60]))
def test_a_worker_may_die_while_another_is_slow(calm, table, kill):
    calm.clean(run_slow(calm, table, LAYOUTS["2x2"], [LASTING, kill]))


LINKS = [
    ["link 0.0-0.1 @ 13-45 +20ms"],
    ["link 0.0-1.0 @ 13-45 +20ms"],
    ["link 0.0-0.1 @ 13-30 +20ms", "slow 1.1 @ 20-45 x4"],
    ["link 0.0-0.1 @ 13-45 +20ms", "kill 1.1 @ 20.B1"],
    ["link 0.0-1.0 @ 13-45 +20ms", "kill 1.0 @ 21.partials"],
    ["slow 1.0 @ 13-25 x4", "slow 0.1 @ 18-40 x3", "kill 0.0 @ 24.W1"],
]


@pytest.mark.parametrize("faults", first(1, LINKS[:3] if QUICK else LINKS), ids=str)
def test_slow_links_and_ladders_leave_the_result_as_it_was(calm, table, faults):
    calm.clean(run_slow(calm, table, LAYOUTS["2x2"], faults))
