"""What a reconfiguration does when all have told: a table of situations, no coordinator."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.baselines.committing import NO_COPY, from_copies
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.decide.decision import (
    MOST_STUCK,
    EndRun,
    LogFacts,
    ProceedDecision,
    Rebuild,
    RestoreCopy,
    Rollback,
    Situation,
    decide,
    members_after,
)
from holdfast.control.inventory.remainder import Remainders
from holdfast.errors import ScheduleError
from holdfast.protocol.messages import Inventory
from holdfast.protocol.records import VerdictRow

GRID = {WorkerId(p, s): s for p in range(2) for s in range(2)}
FOUR = {name: WorkerId(*name) for name in [(0, 0), (0, 1), (1, 0), (1, 1)]}
REST = Remainders((), 4, {}, (), 0, 0.0)
GOOD = VerdictRow(1.0, None, False)
LOGGED = LogFacts(start=2)


def has(worker, reduced=4, **changes):
    values = {
        "worker": str(worker),
        "epoch": 1,
        "reduced": reduced,
        "oldest": reduced,
        "attempt": 0,
        "progress": {},
        "kept": [],
        "verdicts": {},
        "kept_bytes": 0,
        "done": 0,
        "saving": 0,
        "commits": [],
    }
    return Inventory(**(values | changes))


class Planner:
    """Ends the steps unless somebody of ``unable`` is a member; remembers who was asked."""

    def __init__(self, *unable, versions=None):
        self.unable, self.versions = {parse_worker(name) for name in unable}, versions
        self.asked = []

    def __call__(self, stages, inventories):
        self.asked.append(dict(stages))
        new = {inventories[w].reduced for w in stages if not inventories[w].verdicts}
        wrong = self.versions is not None and not new <= self.versions
        if self.unable & stages.keys() or wrong:
            raise ScheduleError("the steps cannot be ended")
        return REST


def situation(stages=GRID, *, plan=None, **changes):
    values = {"num_stages": 2, "end_step": 20, "plan_rest": plan or Planner(), "entering": {}}
    return Situation(stages=stages, **(values | changes))


def without(*names):
    return {worker: stage for worker, stage in GRID.items() if str(worker) not in names}


def all_have(stages, reduced=4, **changes):
    return {worker: has(worker, reduced, **changes) for worker in stages}


def dead(*names):
    return tuple((parse_worker(name), parse_worker(name).stage) for name in names)


# --- every stage has a holder ---


def test_when_nobody_is_missing_all_go_on() -> None:
    found = decide(all_have(GRID), situation())
    assert found == ProceedDecision(GRID, REST, "every stage has a holder")


def test_the_others_take_over_what_a_lost_worker_did() -> None:
    left = without("1.0")
    found = decide(all_have(left), situation(left, dead=dead("1.0")))
    assert isinstance(found, ProceedDecision)
    assert found.stages == left


def test_who_leaves_is_no_member_any_more() -> None:
    found = decide(all_have(GRID), situation(leaving=(WorkerId(1, 1),)))
    assert isinstance(found, ProceedDecision)
    assert found.stages == without("1.1")


def test_nobody_leaves_a_stage_that_has_no_other_holder() -> None:
    left = without("0.1")
    found = decide(all_have(left), situation(left, leaving=(WorkerId(1, 1),)))
    assert isinstance(found, ProceedDecision)
    assert found.stages == left


@pytest.mark.parametrize(("reduced", "comes_in"), [(4, True), (3, True), (2, False)])
def test_who_enters_is_at_most_a_step_behind(reduced, comes_in) -> None:
    joiner, left = WorkerId(1, 0), without("1.0")
    told = all_have(left) | {joiner: has(joiner, reduced)}
    found = decide(told, situation(left, entering={joiner: 0}))
    assert isinstance(found, ProceedDecision)
    assert (joiner in found.stages) is comes_in


def test_who_enters_a_stage_that_nobody_holds_is_never_behind() -> None:
    joiner, left = WorkerId(1, 0), without("0.0", "1.0")
    told = all_have(left, 9) | {joiner: has(joiner, 4)}
    found = decide(told, situation(left, entering={joiner: 0}))
    assert isinstance(found, ProceedDecision)
    assert found.stages == {**left, joiner: 0}


def test_if_those_who_come_or_go_make_it_impossible_all_stay_as_they_are() -> None:
    joiner, left, plan = WorkerId(1, 0), without("1.0"), Planner("1.0")
    told = all_have({**left, joiner: 0})
    found = decide(told, situation(left, entering={joiner: 0}, plan=plan))
    assert isinstance(found, ProceedDecision)
    assert found.stages == left
    assert [len(stages) for stages in plan.asked] == [4, 3]


def test_members_who_cannot_end_the_steps_go_back() -> None:
    found = decide(all_have(GRID), situation(plan=Planner("0.0")))
    assert found == Rollback("nobody has the state of stage 0 any more")


def test_the_lost_stage_that_is_named_is_that_of_the_dead() -> None:
    left = without("1.1")
    found = decide(all_have(left), situation(left, dead=dead("1.1"), plan=Planner("0.0")))
    assert found == Rollback("nobody has the state of stage 1 any more")


def test_a_step_that_others_have_finished_cannot_be_given_up() -> None:
    told = all_have(GRID) | {WorkerId(0, 0): has(WorkerId(0, 0), 6)}
    found = decide(told, situation(end_step=5))
    assert found == EndRun("step 6 is finished by some, and the last is 5")
    assert isinstance(decide(told, situation(end_step=6)), ProceedDecision)


# --- a stage has no holder ---

LOST = without("0.1", "1.1")
FREE = (WorkerId(0, 1), WorkerId(1, 1))


def told_of(*steps):
    return all_have(LOST, verdicts=dict.fromkeys(steps, GOOD))


def lost(log_facts=LOGGED, **changes):
    return situation(LOST, dead=dead("1.1"), free=FREE, log_facts=log_facts, **changes)


def test_without_a_log_all_go_back() -> None:
    assert decide(told_of(3), lost(None)) == Rollback("nobody has the state of stage 1 any more")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"has_boundary": False}, "no boundary of the lost stage is logged"),
        ({"num_stuck": MOST_STUCK}, "the replay did not come to an end"),
        ({"reached": 1, "gap": "a file is missing"}, "a file is missing"),
        ({"reached": 1}, "the others cannot go on from any version of the lost stage"),
    ],
)
def test_what_cannot_be_replayed_is_said(facts, reason) -> None:
    assert decide(told_of(3), lost(replace(LOGGED, **facts))) == Rollback(reason)


def test_a_lost_stage_is_rebuilt_to_the_newest_step_that_anybody_has_settled() -> None:
    assert decide(told_of(2, 3, 4), lost()) == Rebuild((1,), 5, "nobody holds stage 1")


def test_if_the_others_cannot_go_on_from_there_it_is_the_one_before() -> None:
    found = decide(told_of(4), lost(plan=Planner(versions={4})))
    assert isinstance(found, Rebuild)
    assert found.version == 4


def test_a_log_that_ends_early_gives_an_older_version() -> None:
    found = decide(told_of(4), lost(replace(LOGGED, reached=4)))
    assert isinstance(found, Rebuild)
    assert found.version == 4


def test_the_version_stays_the_same_until_all_are_halted_again() -> None:
    plan = Planner()
    found = decide(told_of(4), lost(replace(LOGGED, chosen=3), plan=plan))
    assert isinstance(found, Rebuild)
    assert (found.version, plan.asked) == (3, [])


def test_nothing_is_rebuilt_from_before_the_checkpoint() -> None:
    found = decide(told_of(), lost())
    assert isinstance(found, Rebuild)
    assert found.version == LOGGED.start


def test_several_lost_stages_are_all_named() -> None:
    one = {WorkerId(0, 1): 1}
    now = Situation(
        stages=one,
        num_stages=3,
        end_step=9,
        plan_rest=Planner(),
        entering={},
        free=(WorkerId(0, 0), WorkerId(0, 2)),
        log_facts=LOGGED,
    )
    found = decide(all_have(one, verdicts={3: GOOD}), now)
    assert found == Rebuild((0, 2), 4, "nobody holds stage 0, 2")


# --- other policies ---


def test_a_loss_that_ends_all_workers_is_the_reason_of_every_rollback() -> None:
    gone = situation({}, dead=dead("1.1"), ends_all="a loss ends all workers")
    assert decide({}, gone) == Rollback("a loss ends all workers")


def copies(**of):
    return {
        worker: has(worker, commits=of[f"w{worker.pipeline}{worker.stage}"])
        for worker in without("1.0")
    }


def test_after_a_loss_all_go_back_to_the_newest_copy_in_common() -> None:
    left = situation(without("1.0"), dead=dead("1.0"))
    found = decide(copies(w00=[2, 3], w01=[3, 4], w11=[2, 3]), left, from_copies)
    assert found == RestoreCopy(3, "worker 1.0 was lost (recovery.mode=commit); 3 go on")
    assert decide(copies(w00=[2], w01=[3], w11=[2]), left, from_copies) == Rollback(NO_COPY)


def test_copies_are_for_losses_only() -> None:
    found = decide(copies(w00=[3], w01=[3], w11=[3]), situation(without("1.0")), from_copies)
    assert isinstance(found, ProceedDecision)


def test_copies_do_not_help_if_a_stage_is_lost() -> None:
    found = decide(told_of(3), lost(None), from_copies)
    assert isinstance(found, Rollback)
    joiner = WorkerId(0, 1)
    now = situation(LOST, dead=dead("1.1"), entering={joiner: 1})
    found = decide(told_of(3) | {joiner: has(joiner)}, now, from_copies)
    assert found == Rollback("nobody has the state of stage 1 any more")


# --- whatever is told ---


@st.composite
def anything(draw):
    names = sorted(FOUR.values())
    members = draw(st.sets(st.sampled_from(names)))
    stages = {worker: draw(st.integers(0, 1)) for worker in sorted(members)}
    others = [worker for worker in names if worker not in stages]
    comes = draw(st.sets(st.sampled_from(others))) if others else set()
    goes = draw(st.sets(st.sampled_from(sorted(stages)))) if stages else set()
    told = {w: has(w, draw(st.integers(0, 9))) for w in sorted({*stages, *comes})}
    plan = Planner(*(str(worker) for worker in draw(st.sets(st.sampled_from(names)))))
    now = situation(
        stages,
        plan=plan,
        entering={worker: draw(st.integers(0, 1)) for worker in sorted(comes)},
        leaving=tuple(sorted(goes)),
        end_step=draw(st.integers(0, 20)),
        log_facts=draw(st.sampled_from([None, LOGGED])),
        free=tuple(worker for worker in names if worker not in stages),
    )
    return told, now


@given(anything())
def test_a_decision_fits_its_situation_and_has_a_reason(case) -> None:
    told, now = case
    found = decide(told, now)
    assert found.reason
    assert decide(told, now) == found, "it remembers nothing"
    match found:
        case ProceedDecision():
            assert now.holds_all(found.stages)
            assert not now.plan_rest.unable & found.stages.keys()
        case Rebuild():
            assert found.stages == now.lost_stages != ()
            assert now.log_facts is not None
            assert found.version >= now.log_facts.start
        case Rollback():
            assert not now.holds_all(members_after(told, now)) or now.plan_rest.unable
        case EndRun():
            assert max(told[worker].reduced for worker in now.stages) > now.end_step
