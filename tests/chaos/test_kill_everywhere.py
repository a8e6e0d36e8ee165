"""Whoever dies, wherever: the run goes on by itself and ends with the bits of a quiet run.

HOLDFAST_SWEEP is how many per cent of all points are tried (100: every one), HOLDFAST_SEED what
the random sample is drawn from; it is printed with the table at the end.
"""

import itertools
import random
from dataclasses import dataclass

import pytest

from helpers.seed import SEED
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps import chaos_order as order
from helpers.sweeps.chaos import LAYOUTS, PER_CENT, PHASES, QUICK, SAVE, STEPS
from helpers.wide import every, first, where

NUM_RANDOM = 10 if QUICK else 25  # points, and half as many pairs
MIDDLE, EDGES = (3, 4), (1, STEPS)  # as in the terminal: from 1
EVERY_STEP = "checkpoint.every_steps=1"
NUM_PAIRS_EACH = 24  # for every two workers of 2x3


@dataclass(frozen=True)
class Single:
    layout: str
    worker: str
    step: int
    point: str

    @property
    def fault(self) -> str:
        return f"kill {self.worker} @ {self.step}.{self.point}"

    def __str__(self) -> str:
        return f"{self.layout} {self.fault}"


@dataclass(frozen=True)
class Pair:
    layout: str
    one: str
    other: str
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.layout, self.one, "and", self.other, *self.settings])


def all_singles(steps):
    """Shuffled, always in the same way: every n-th of them is a fair sample."""
    found = [
        Single(layout.text, worker, step, point)
        for layout in LAYOUTS.values()
        for worker in layout.workers
        for step in steps
        for point in layout.points(worker)
    ]
    random.Random("singles").shuffle(found)
    return found


def spread(cases, per_cent):
    stride = max(1, round(100 / per_cent))
    return cases[::stride]


def sample(singles, per_cent):
    """Some of them, but each point at least once."""
    found = spread(singles, per_cent)
    rare = {one.point: one for one in singles if one.point not in {two.point for two in found}}
    return [*found, *rare.values()]


SECOND = ("halt", "proceed", "anywhere", "same")


def draw_pair(dice, layout, workers, second):
    """``second``: where the other one dies; halt and proceed are in the first one's recovery."""
    first, other = dice.sample(workers, 2)
    step, points = dice.choice(MIDDLE), [*layout.operations, *PHASES]
    point = dice.choice(points)
    there = {"anywhere": dice.choice(points), "same": point}.get(second)
    # Those two count from a step on, and the other one may be a step behind the first.
    where = f"{step - 1}.{second}" if there is None else f"{step}.{there}"
    settings = (EVERY_STEP,) if dice.random() < 0.5 else ()
    return Pair(layout.text, f"kill {first} @ {step}.{point}", f"kill {other} @ {where}", settings)


def all_pairs():
    dice, layout = random.Random("pairs"), LAYOUTS["2x3"]
    each = [
        [
            draw_pair(dice, layout, workers, SECOND[number % len(SECOND)])
            for workers in itertools.combinations(layout.workers, 2)
        ]
        for number in range(NUM_PAIRS_EACH)
    ]
    return [pair for row in each for pair in row]


# --- one death ---


def check_single(arena, table, single, *settings):
    layout = LAYOUTS[single.layout]
    saves = [EVERY_STEP] if single.point == SAVE else []
    story = arena.run(layout, [single.fault], *settings, *saves)
    table.add("points", story)
    checks.assert_same(story, arena.undisturbed(layout, *settings))
    checks.assert_fired(story)
    assert not story.went_back, str(story)
    checks.assert_only_lost_work_is_redone(story, single.worker)
    checks.assert_events_tell_what_ran(story, single.worker)
    table.well(story)
    arena.clean(story)


SINGLES = sample(all_singles(MIDDLE), PER_CENT)
AT_THE_EDGES = spread(all_singles(EDGES), PER_CENT / 10)


# Every time: each phase of a step, and an operation of each kind.
USUAL = {*PHASES, SAVE, "F1.done", "B1", "W0.done"}
ONCE = {one.point: one for one in SINGLES if one.point in USUAL}


@pytest.mark.parametrize(
    "single", where(set(ONCE.values()).__contains__, [*SINGLES, *AT_THE_EDGES]), ids=str
)
def test_a_worker_may_die_at_any_point(arena, table, single):
    check_single(arena, table, single)


@pytest.mark.parametrize("number", first(1, range(NUM_RANDOM)))
def test_a_worker_may_die_at_a_random_point(arena, table, number):
    single = random.Random(f"{SEED}-{number}").choice(all_singles((*MIDDLE, *EDGES)))
    print(f"HOLDFAST_SEED={SEED}: {single}")  # noqa: T201
    check_single(arena, table, single)


def test_the_whole_sweep_has_at_least_five_hundred_points_and_three_hundred_pairs():
    assert len(all_singles(MIDDLE)) >= 1000
    assert len({str(single) for single in all_singles(MIDDLE)}) == len(all_singles(MIDDLE))
    assert {single.point for single in SINGLES} >= {*PHASES, SAVE}
    assert len(set(all_pairs())) >= 330


# --- two deaths in one step ---


def check_pair(arena, table, pair):
    """The second one may not come to its point any more: others may do its work by then."""
    layout = LAYOUTS[pair.layout]
    story = arena.run(layout, [pair.one, pair.other], *pair.settings)
    both = len(story.fired) == 2
    table.add("pairs" if both else "points", story)
    checks.assert_same(story, arena.undisturbed(layout))
    checks.assert_fired(story, story.fired)
    assert story.fired, str(story)
    checks.assert_went_back_only_for_a_lost_stage(story)
    table.well(story)
    arena.clean(story)


@pytest.mark.parametrize(
    "pair", every(4, spread(all_pairs(), 100 if PER_CENT >= 100 else 6)), ids=str
)
def test_two_workers_may_die_in_one_step(arena, table, pair):
    check_pair(arena, table, pair)


@pytest.mark.parametrize("layout", first(1, ["2x3", "2x2"]))
@pytest.mark.parametrize(("settings", "least"), [((), 0), ((EVERY_STEP,), 1)], ids=["", "saved"])
def test_when_all_holders_of_a_stage_die_the_run_goes_back_by_itself(
    arena, table, layout, settings, least, monkeypatch
):
    layout = LAYOUTS[layout]
    undisturbed = arena.undisturbed(layout)
    if settings:
        order.steps_wait_for_checkpoints(monkeypatch, every=1)
    story = arena.run(layout, ["kill 0.1 @ 4.B1", "kill 1.1 @ 4.halt"], *settings)
    table.add("pairs", story)
    checks.assert_same(story, undisturbed)
    checks.assert_fired(story)
    [back] = story.outcome.summary["went_back"]
    assert back["lost_stage"] == 1, str(story)
    assert least <= back["to_step"] <= 3 * least, str(story)
    assert bool(back["checkpoint"]) == bool(settings), str(story)
    table.well(story)
    arena.clean(story)


@pytest.mark.parametrize("number", first(1, range(NUM_RANDOM // 2)))
def test_two_workers_may_die_at_random_points(arena, table, number):
    dice = random.Random(f"{SEED}-pair-{number}")
    layout = LAYOUTS[dice.choice(list(LAYOUTS))]
    pair = draw_pair(dice, layout, layout.workers, dice.choice(SECOND))
    print(f"HOLDFAST_SEED={SEED}: {pair}")  # noqa: T201
    check_pair(arena, table, pair)


# --- other modes ---

OTHERS = spread(all_singles((3,)), 1 if QUICK else 10)


@pytest.mark.parametrize("single", first(1, OTHERS), ids=str)
def test_a_worker_may_die_at_any_point_if_all_stages_step_together(arena, table, single):
    check_single(arena, table, single, "optimizer.mode=global")


@pytest.mark.parametrize("single", first(1, OTHERS), ids=str)
def test_with_fast_gradients_the_run_ends_well_whoever_dies(arena, table, single):
    saves = [EVERY_STEP] if single.point == SAVE else []
    fast = "gradients.mode=fast"
    story = arena.run(LAYOUTS[single.layout], [single.fault], fast, *saves)
    table.add("fast", story)
    checks.assert_ended_well(story)
    checks.assert_fired(story)
    arena.clean(story)
