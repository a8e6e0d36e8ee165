"""Deaths one after the other, joins and hangs: much happens, and the result does not show it.

HOLDFAST_SWEEP=100 tries more of it, HOLDFAST_SEED sets what is drawn at random.
"""

import random

import pytest

from helpers.seed import SEED
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps import chaos_order as order
from helpers.sweeps.chaos import LAYOUTS, PHASES, QUICK
from helpers.wide import first
from holdfast.faults.chaos import chaos_faults, parse_chaos
from holdfast.observability.events import FaultFired, JoinFailed, WorkerJoined


def check_story(table, story, undisturbed):
    """What must be true of a run in which much happens."""
    table.add("others", story)
    checks.assert_same(story, undisturbed)
    checks.assert_fired(story, story.fired)
    checks.assert_went_back_only_for_a_lost_stage(story)
    table.well(story)


@pytest.mark.parametrize("number", first(1, range(2 if QUICK else 20)))
def test_workers_may_die_until_every_stage_has_a_single_holder(arena, table, number):
    dice, layout = random.Random(f"{SEED}-four-{number}"), LAYOUTS["3x2"]
    dying = [worker for stage in "01" for worker in dice.sample([f"{p}.{stage}" for p in "012"], 2)]
    dice.shuffle(dying)
    points = [*layout.operations, *PHASES]
    faults = [f"kill {w} @ {step}.{dice.choice(points)}" for step, w in enumerate(dying, start=2)]
    print(f"HOLDFAST_SEED={SEED}: {faults}")  # noqa: T201
    story = arena.run(layout, faults, steps=7)
    check_story(table, story, arena.undisturbed(layout, steps=7))
    assert len(story.fired) >= 3, str(story)  # the last one may have lost its turn to others
    arena.clean(story)


def test_what_a_finished_stage_has_lost_is_run_again_by_a_peer_that_is_past_it(
    arena, table, monkeypatch
):
    """Its gradients were sent but not yet used, since the stage before is so slow."""
    layout = LAYOUTS["2x3"]
    undisturbed = arena.undisturbed(layout)
    order.backward_waits_for_the_halt(monkeypatch, "0.0", step=2)
    order.death_waits_for_a_point(monkeypatch, "0.1", worker="1.1", step=2, point="told")
    story = arena.run(layout, ["kill 0.1 @ 3.reduced"])
    check_story(table, story, undisturbed)
    checks.assert_only_lost_work_is_redone(story, "0.1")
    assert any(one.is_again and one.step == 2 for one in story.ran), str(story)
    arena.clean(story)


LONG = 16  # steps: a joiner has time to enter


@pytest.fixture
def unhurried(monkeypatch):
    """However busy the machine is."""
    order.unhurried_joins(monkeypatch)


def joined(story):
    return sorted(event.worker for event in story.outcome.events if isinstance(event, WorkerJoined))


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("layout", ["2x2"] if QUICK else list(LAYOUTS))
def test_two_may_die_and_two_may_join_at_the_same_time(arena, table, layout):
    layout = LAYOUTS[layout]
    faults = ["kill 1.0 @ 2.B1", "kill 1.1 @ 2.F1.done", "join 1.0 @ 3", "join 1.1 @ 3"]
    story = arena.run(layout, faults, steps=LONG)
    check_story(table, story, arena.undisturbed(layout, steps=LONG))
    assert sorted(story.fired) == sorted(story.faults), str(story)
    assert joined(story) == ["1.0", "1.1"], str(story)
    arena.clean(story)


@pytest.mark.wide
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("layout", ["2x3"] if QUICK else list(LAYOUTS))
def test_a_joiner_may_die_while_it_copies(arena, table, layout):
    layout = LAYOUTS[layout]
    faults = ["kill 1.0 @ 2.B1", "join 1.0 @ 3", "kill 1.0 @ 1.copy", "join 1.0 @ 8"]
    story = arena.run(layout, faults, steps=LONG)
    check_story(table, story, arena.undisturbed(layout, steps=LONG))
    assert sorted(story.fired) == sorted(story.faults), str(story)
    failed = [event.worker for event in story.outcome.events if isinstance(event, JoinFailed)]
    assert failed == ["1.0"], str(story)
    assert joined(story) == ["1.0"], str(story)
    arena.clean(story)


@pytest.mark.wide
@pytest.mark.parametrize("layout", ["3x2"] if QUICK else list(LAYOUTS))
def test_a_source_may_die_while_it_feeds_a_joiner(arena, table, layout, monkeypatch):
    """The joiner does not have all before."""
    layout = LAYOUTS[layout]
    undisturbed = arena.undisturbed(layout, steps=LONG)
    for step in (4, 5, 6):
        with monkeypatch.context() as patch:
            order.copies_wait_for_the_death(patch, of="0.0")
            faults = ["kill 1.0 @ 2", "join 1.0 @ 3", f"kill 0.0 @ {step}.settled"]
            story = arena.run(layout, faults, steps=LONG)
        check_story(table, story, undisturbed)
        [asked_s, killed_s] = [
            next(event.at_s for event in story.outcome.events if is_fault(event, fault))
            for fault in story.faults[1:]
        ]
        entered_s = [e.at_s for e in story.outcome.events if isinstance(e, WorkerJoined)]
        assert asked_s < killed_s < min(entered_s, default=float("inf")), str(story)
        arena.clean(story)


def is_fault(event, fault):
    return isinstance(event, FaultFired) and event.fault == fault


HANGS = ["2.F1", "3.partials", "3.half", "4.B1", "4.W0.done", "4.check", "4.settled", "3.told"]


@pytest.mark.parametrize("point", first(1, HANGS[:3] if QUICK else HANGS))
def test_a_worker_that_hangs_is_as_good_as_dead(arena, table, point):
    layout = LAYOUTS["3x2"]
    story = arena.run(layout, [f"hang 1.0 @ {point}"], "workers.heartbeat_timeout_s=3")
    check_story(table, story, arena.undisturbed(layout))
    assert len(story.fired) == 1, str(story)
    arena.clean(story)


@pytest.mark.parametrize("layout", first(1, LAYOUTS))
@pytest.mark.parametrize("number", range(1 if QUICK else 8))
def test_random_kills_and_joins_leave_the_result_as_it_was(arena, table, layout, number):
    layout = LAYOUTS[layout]
    chaos = f"seed={random.Random(f'{SEED}-chaos-{number}').randrange(10**6)},rate=0.1"
    print(f"HOLDFAST_SEED={SEED}: --chaos {chaos}")  # noqa: T201
    story = arena.start(layout, ["--chaos", chaos], steps=LONG)
    check_story(table, story, arena.undisturbed(layout, steps=LONG))
    wanted = chaos_faults(parse_chaos(chaos), layout.pipelines, layout.stages, LONG)
    assert bool(story.fired) == bool(wanted), str(story)
    arena.clean(story)
