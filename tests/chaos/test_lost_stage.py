"""Nobody holds a stage any more: it is rebuilt from the log, and nobody else runs anything again.

HOLDFAST_SWEEP=100 tries every point and every pair; HOLDFAST_SEED sets what is drawn at random.
"""

import random
import re
from dataclasses import dataclass, replace

import pytest

from helpers.seed import SEED
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps import chaos_logs as logs
from helpers.sweeps import chaos_order as order
from helpers.sweeps.chaos import LAYOUTS, PER_CENT, PHASES, QUICK, SAVE, Layout
from helpers.wide import every, first
from holdfast.cluster import parse_worker
from holdfast.control.restore import log_policy
from holdfast.planner.logs import boundaries as log_boundaries

ONE = Layout("1x4", 4, "[1, 2, 3]", 0.55)
TWO = replace(LAYOUTS["2x3"])
STEPS = 6
AROUND = (3, 4, 5)  # steps, from 1; checkpoints are after the third and the last
EVERY = 3
LOG = ("recovery.log=boundary", f"checkpoint.every_steps={EVERY}")


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
            saves = [SAVE] if step % EVERY == 0 and len(victims) == 1 else []
            points = [*layout.operations, *PHASES, *saves]
            found += [Loss(layout, victims, step, point) for point in points]
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


@pytest.mark.parametrize(
    "loss", first(3, sample(losses(ONE), PER_CENT / (2 if QUICK else 1))), ids=str
)
def test_a_stage_without_a_holder_is_rebuilt_and_nobody_else_runs_anything_again(
    arena, table, loss
):
    check_loss(arena, table, loss)


@pytest.mark.parametrize(
    "loss", first(1, sample(losses(TWO), PER_CENT / (2 if QUICK else 1))), ids=str
)
def test_both_holders_of_a_stage_may_die(arena, table, loss):
    check_loss(arena, table, loss)


# --- other settings ---

LATER = Loss(ONE, ("0.2",), 5, "B1")
SETTINGS = {
    "the replacement replays alone": ("recovery.helpers=0",),
    "one helper replays": ("recovery.helpers=1",),
    "as in Swift": ("recovery.mode=swift",),
    "all stages step together": ("optimizer.mode=global",),
    "steps are undone": ("recovery.consistency=undo",),
    "there is no checkpoint yet": ("checkpoint.every_steps=0",),
    "only one checkpoint is kept": ("checkpoint.every_steps=2", "checkpoint.keep=1"),
}
POINTS = ("B1", "half", "F0", "W3.done", "partials", "told", "settled")


@pytest.mark.parametrize("setting", every(4, SETTINGS))
@pytest.mark.parametrize("point", POINTS[:1] if QUICK else POINTS)
def test_a_lost_stage_is_rebuilt_whatever_the_settings_are(arena, table, setting, point):
    check_loss(arena, table, replace(LATER, point=point), *SETTINGS[setting])


@pytest.mark.parametrize("setting", first(1, list(SETTINGS)[:3]))
@pytest.mark.parametrize("stage", [1] if QUICK else [0, 1, 2])
def test_so_is_one_of_which_both_holders_die(arena, table, setting, stage):
    check_loss(arena, table, Loss(TWO, (f"0.{stage}", f"1.{stage}"), 4, "B2"), *SETTINGS[setting])


# --- more than one ---

PATIENT = ("workers.restarts=9",)


def check_kills(arena, table, faults, *settings, layout=ONE, steps=STEPS, replayed=None):
    """``replayed``: the stages of each replay, in any order; None: not known."""
    story = arena.run(layout, faults, *LOG, *PATIENT, *settings, steps=steps)
    table.add("pairs", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=steps))
    checks.assert_fired(story)
    assert not story.went_back, str(story)
    checks.assert_neighbours_run_nothing_again(story, killed_by(faults))
    rebuilt = story.outcome.summary["rebuilt"]
    found = sorted(tuple(one["replayed"]) for one in rebuilt)
    if not all(one["operations"] for one in rebuilt):  # the checkpoint was new enough for all
        found = sorted((stage,) for stages in found for stage in stages)
        replayed = replayed and [(stage,) for stages in replayed for stage in stages]
    assert replayed is None or found == sorted(replayed), str(story)
    table.well(story)
    arena.clean(story)


def killed_by(faults):
    return {fault.split()[1] for fault in faults}


TOGETHER = {
    "neighbours": (("0.2", "0.1"), [(1, 2)]),
    "the last two": (("0.2", "0.3"), [(2, 3)]),
    "the first two": (("0.0", "0.1"), [(0, 1)]),
    "not neighbours": (("0.2", "0.0"), [(0,), (2,)]),
    "all but one": (("0.2", "0.1", "0.3"), [(1, 2, 3)]),
    "the tied ends": (("0.0", "0.3"), [(0,), (3,)]),
}


@pytest.mark.parametrize("which", every(3, TOGETHER))
@pytest.mark.parametrize("point", ["B1"] if QUICK else POINTS)
def test_stages_may_be_lost_together(arena, table, which, point):
    (first, *others), replayed = TOGETHER[which]
    faults = [f"kill {first} @ 5.{point}", *(f"kill {other} @ 3.halt" for other in others)]
    check_kills(arena, table, faults, replayed=replayed)


def test_stages_lost_together_may_be_rebuilt_by_the_replacements_alone(arena, table):
    faults = ["kill 0.2 @ 5.B1", "kill 0.0 @ 3.halt"]
    check_kills(arena, table, faults, "recovery.helpers=0", replayed=[(0,), (2,)])


def test_everybody_may_die_one_after_the_other(arena, table):
    check_kills(arena, table, [f"kill 0.{stage} @ 5.F1" for stage in range(4)])


MEANWHILE = {
    "a neighbour, while it replays": ["kill 0.2 @ 5.B1", "kill 0.1 @ 4.replay"],
    "another, while it replays": ["kill 0.2 @ 5.B1", "kill 0.0 @ 4.replay"],
    "two, while they replay": ["kill 0.0 @ 5.B1", "kill 0.1 @ 4.replay", "kill 0.2 @ 4.replay"],
    "a neighbour, with the new plan": ["kill 0.2 @ 5.B1", "kill 0.3 @ 5.proceed"],
    "another, with the new plan": ["kill 0.2 @ 5.B1", "kill 0.0 @ 5.proceed"],
    "the replacement, when it enters": ["kill 0.2 @ 4.B1", "kill 0.2 @ 4.halt"],
    "the replacement, with the plan": ["kill 0.2 @ 4.B1", "kill 0.2 @ 4.proceed"],
    "the replacement, in the same step": ["kill 0.2 @ 4.B1", "kill 0.2 @ 4.W1"],
    "the replacement, a step later": ["kill 0.2 @ 4.B1", "kill 0.2 @ 5.settled"],
    "the stage before, a step later": ["kill 0.2 @ 4.B1", "kill 0.1 @ 5.B1"],
    "the stage after, a step later": ["kill 0.2 @ 4.B1", "kill 0.3 @ 5.reduced"],
    "both, a step later": ["kill 0.2 @ 4.B1", "kill 0.1 @ 5.B1", "kill 0.2 @ 5.halt"],
}


@pytest.mark.parametrize("who", every(4, MEANWHILE))
@pytest.mark.parametrize("helpers", [-1] if QUICK else [-1, 0, 2])
def test_more_may_die_on_the_way(arena, table, who, helpers):
    if helpers == 0 and "replay" in who:
        pytest.skip("they do not replay")
    check_kills(arena, table, MEANWHILE[who], f"recovery.helpers={helpers}")


@pytest.mark.parametrize("number", first(1, range(2 if QUICK else 30)))
def test_random_losses_leave_the_result_as_it_was(arena, table, number):
    dice = random.Random(f"{SEED}-lost-{number}")
    points = [*ONE.operations, *PHASES]
    faults = [
        f"kill {dice.choice(ONE.workers)} @ {step}.{dice.choice(points)}"
        for step in (2, 4, 4, 5, 7, 8)
        if dice.random() < 0.7
    ]
    faults = [fault.removesuffix(".begin") for fault in dict.fromkeys(faults)]
    print(f"HOLDFAST_SEED={SEED}: {faults}")  # noqa: T201
    check_kills(arena, table, faults or ["kill 0.1 @ 4"], steps=9)


def test_the_loss_of_the_last_step_is_told_by_whoever_is_left(arena, table):
    check_kills(arena, table, ["kill 0.2 @ 6.settled"])


# --- somebody else holds it then, or nobody can ---


@pytest.mark.parametrize("stage", [1] if QUICK else [0, 1, 2])
def test_if_nobody_is_started_somebody_of_another_stage_takes_it_over(arena, table, stage):
    faults = [f"kill {p}.{stage} @ 5.B1" for p in (0, 1)]
    story = arena.run(TWO, faults, *LOG, "workers.restarts=0", steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(TWO, steps=STEPS))
    checks.assert_fired(story)
    assert not story.went_back, str(story)
    [moved] = story.outcome.summary["moves"]
    assert moved["to_stage"] == stage, str(story)
    stages = {stage, moved["from_stage"]}
    for key, who in checks.who_ran(story.ran).items():
        assert len(who) == 1 or key[2].stage in stages, f"{key} was run by {who}\n{story}"
    table.well(story)
    arena.clean(story)


# Whoever takes it over may be the only one that has heard how the last step was judged: who has
# is a matter of microseconds.
TAKEN_OVER = [
    ["kill 0.1 @ 5.reduced", "kill 1.1 @ 5.halt"],
    ["kill 0.0 @ 4.F2", "kill 1.0 @ 5.told"],
    ["kill 1.0 @ 4.told", "kill 0.0 @ 4.halt"],
    ["kill 1.1 @ 5.settled", "kill 0.1 @ 5.settled"],
]


@pytest.mark.parametrize("faults", first(1, TAKEN_OVER), ids=str)
@pytest.mark.parametrize("turn", first(1, range(3)))
def test_whoever_takes_it_over_leaves_nobody_waiting_for_a_verdict(arena, table, faults, turn):
    layout = LAYOUTS["2x2"]
    story = arena.run(layout, faults, *LOG, "workers.restarts=0", steps=STEPS)
    table.add("others", story)
    checks.assert_same(story, arena.undisturbed(layout, steps=STEPS))
    assert not story.went_back, str(story)
    table.well(story)
    arena.clean(story)


def test_if_nobody_can_hold_it_the_run_ends_with_one_clear_line(arena):
    story = arena.run(ONE, LATER.faults, *LOG, "workers.restarts=0", steps=STEPS)
    assert (story.stacks, story.outcome.exit_code) == ("", 1), str(story)
    [line] = story.outcome.stderr.splitlines()
    for part in ("worker 0.2", "nobody holds stage 2 any more", "3 live workers cannot hold 4"):
        assert part in line
    assert f"--resume {story.outcome.run_dir}" in line


# --- logs that are gone, cut short or changed ---

LONG_LOG = ("recovery.log=boundary", "checkpoint.every_steps=4")
LONG = 8
IN_THE_END = ["kill 0.2 @ 8.B1"]  # three steps after a checkpoint
HARMS = {
    "gone": logs.gone("0.1"),
    "cut short": logs.cut_short("0.1"),
    "flipped": logs.flipped("0.3"),
}


@pytest.fixture
def harmed(arena, monkeypatch):
    """A run whose logs suffer when somebody is killed; its checkpoints are whole in time."""

    def run(harm, faults, *settings):
        undisturbed = arena.undisturbed(ONE, steps=LONG)
        with monkeypatch.context() as patch:
            order.steps_wait_for_checkpoints(patch, every=4)
            logs.after_kills(patch, lambda: arena.run_dir / "log", harm)
            story = arena.run(ONE, faults, *LONG_LOG, *settings, steps=LONG)
        checks.assert_same(story, undisturbed)
        checks.assert_fired(story)
        return story

    return run


@pytest.mark.parametrize("harm", first(1, HARMS))
def test_if_the_log_of_a_neighbour_is_no_good_all_go_back_and_it_is_said_why(harmed, harm):
    story = harmed(HARMS[harm], IN_THE_END)
    [back] = story.outcome.summary["went_back"]
    assert back["to_step"] == 4, str(story)
    assert back["reason"].startswith("the log of step "), str(story)
    assert not story.outcome.summary["rebuilt"], str(story)


@pytest.mark.parametrize("harm", first(1, HARMS))
def test_with_a_mirror_of_the_log_nobody_goes_back(arena, harmed, tmp_path, harm):
    story = harmed(HARMS[harm], IN_THE_END, f"recovery.log_mirror={tmp_path / 'mirror'}")
    assert not story.went_back, str(story)
    checks.assert_neighbours_run_nothing_again(story, ["0.2"])
    arena.clean(story)


def test_what_died_with_its_log_is_logged_again_in_case_that_a_neighbour_is_lost_next(harmed):
    """Gradients for stage 1 were in the log of 0.2 only."""
    story = harmed(logs.gone("0.2"), ["kill 0.2 @ 7.B1", "kill 0.1 @ 8.B1"])
    assert not story.went_back, str(story)
    checks.assert_neighbours_run_nothing_again(story, ["0.1", "0.2"])


# --- a budget that does not hold all boundaries ---

GROUPS = {
    "the middle boundary": ([1], [(2, 3)]),
    "the last boundary": ([2], [(0, 1, 2)]),
    "the first boundary": ([0], [(1, 2, 3)]),
    "all but the last": ([0, 1], [(2, 3)]),
    "all but the first": ([1, 2], [(2,)]),
}


@pytest.mark.parametrize("which", every(3, GROUPS))
def test_stages_without_a_log_between_them_are_replayed_together(arena, table, monkeypatch, which):
    boundaries, replayed = GROUPS[which]
    choice = log_boundaries.LogChoice(boundaries, [0] * 4, "as the test says")
    monkeypatch.setattr(log_policy, "boundaries_for", lambda **_: choice)
    faults, budget = ["kill 0.2 @ 8.B1"], "recovery.log_budget=1GB"
    check_kills(arena, table, faults, budget, *LONG_LOG, steps=LONG, replayed=replayed)


def test_lost_stages_of_two_groups_are_replayed_with_all_of_both(arena, table, monkeypatch):
    choice = log_boundaries.LogChoice([1], [0] * 4, "as the test says")
    monkeypatch.setattr(log_policy, "boundaries_for", lambda **_: choice)
    faults, budget = ["kill 0.1 @ 8.B1", "kill 0.2 @ 5.halt"], "recovery.log_budget=1GB"
    check_kills(arena, table, faults, budget, *LONG_LOG, steps=LONG, replayed=[(0, 1, 2, 3)])


def test_a_budget_too_small_for_any_boundary_is_said_once_and_a_lost_stage_goes_back(arena):
    story = arena.run(ONE, LATER.faults, *LOG, "recovery.log_budget=300B", steps=STEPS)
    checks.assert_same(story, arena.undisturbed(ONE, steps=STEPS))
    [back] = story.outcome.summary["went_back"]
    assert back["reason"].startswith("no boundary of the lost stage is logged"), str(story)
    [changed] = story.outcome.summary["log_changes"]
    assert not changed["logging"], str(story)
    assert "log_budget=300B holds no boundary" in changed["reason"], str(story)


def test_a_budget_that_holds_a_logged_interval_is_enough_for_the_whole_run(arena, monkeypatch):
    """Each boundary takes about 2.6 kB a step, so that two of three fit. Steps take their time: a
    checkpoint has to be whole two steps after it was taken."""
    budget = ("recovery.log_budget=50kB", "checkpoint.every_steps=6")
    unhurried = "device.emulate=F=8ms,B=8ms,W=8ms"
    undisturbed = arena.undisturbed(ONE, unhurried, steps=24)
    order.steps_wait_for_checkpoints(monkeypatch, every=6)
    story = arena.run(ONE, ["kill 0.2 @ 23.B1"], *LOG, *budget, unhurried, steps=24)
    checks.assert_same(story, undisturbed)
    assert len(story.outcome.summary["log_changes"]) == 1, str(story)
    [changed] = story.outcome.summary["log_changes"]
    assert re.search("holds [12] of 3 boundaries", changed["reason"]), str(story)
    assert not story.went_back, str(story)
    checks.assert_neighbours_run_nothing_again(story, ["0.2"])
