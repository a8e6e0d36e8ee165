from collections import defaultdict
from itertools import chain, combinations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.half_done import World, cross_routed, grid
from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.planner.remainder.facts import Facts, MicrobatchProgress
from holdfast.planner.remainder.lineage import Reduction, Task, still_to_do
from holdfast.schedule.operation import Fact, Kind, Op, Shape, What, makes, needs

F, B, W, BW, R = Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R
NONE, FORWARDED, GRADED, SUMMED = MicrobatchProgress
ACTIVATION, GRADIENT = What.ACTIVATION, What.GRADIENT


def worker(text):
    pipeline, stage = text.split(".")
    return WorkerId(int(pipeline), int(stage))


def done(stage, *microbatches, progress=SUMMED):
    """The facts of a worker that has got so far with these and keeps what it has sent."""
    places = frozenset((stage, m) for m in microbatches)
    return Facts(
        progress=dict.fromkeys(places, progress),
        activations=places,
        gradients=places if progress >= GRADED else frozenset(),
    )


def ask(shape, dead, facts):
    holders = grid(shape.pipelines, shape.stages, dead)
    return still_to_do(shape, holders, {worker(name): told for name, told in facts.items()})


# --- An independent statement of the rules, operation by operation, over `needs` and `makes`.


class Left:
    """The facts that are left, with the questions that can be asked of them."""

    def __init__(self, shape, holders, facts):
        self.shape = shape
        self.committed = {s for w, told in facts.items() for s in told.stepped if s in holders[w]}
        self.progress, self.owner = defaultdict(lambda: NONE), {}
        self.tensors = set()
        for one, told in facts.items():
            self.tensors |= {Fact(ACTIVATION, *place) for place in told.activations}
            self.tensors |= {Fact(GRADIENT, *place) for place in told.gradients}
            for place, progress in told.progress.items():
                if place[0] in holders[one]:
                    self.progress[place], self.owner[place] = progress, one

    def wanted(self):
        """The weight gradients that some R still waits for."""
        for stage in set(range(self.shape.stages)) - self.committed:
            for fact in needs(Op(stage, R), self.shape):
                if self.progress[fact.stage, fact.microbatch] != SUMMED:
                    yield fact

    def from_neighbours(self, op):
        """The needed tensors that come from another stage; its own come out of its stash."""
        return [] if op.kind is W else [f for f in needs(op, self.shape) if f.stage != op.stage]

    def before(self, op):
        """The operation that must run first to make the stash; None if the stash is there."""
        progress = self.progress[op.stage, op.microbatch]
        has_stash = {F: True, B: progress == FORWARDED, W: progress == GRADED}[op.kind]
        return None if has_stash else Op(op.stage, {B: F, W: B}[op.kind], op.microbatch)


def least_operations(left):
    """The least fixed point: what the wanted need, what those need, and so on."""
    maker = {What.ACTIVATION: F, What.GRADIENT: B, What.WEIGHT: W}
    found, waiting = set(), [Op(f.stage, W, f.microbatch) for f in left.wanted()]
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        lacking = [fact for fact in left.from_neighbours(op) if fact not in left.tensors]
        waiting += [Op(fact.stage, maker[fact.what], fact.microbatch) for fact in lacking]
        if left.before(op):
            waiting.append(left.before(op))
    return found


def made_by_operations(left, ops):
    """Everything that can be made if exactly these operations may run, in any order."""
    made, ran, waiting = set(left.tensors), set(), set(ops)
    while True:
        ready = {
            op
            for op in waiting
            if left.before(op) in ran | {None} and made.issuperset(left.from_neighbours(op))
        }
        if not ready:
            return made
        ran |= ready
        waiting -= ready
        made |= {fact for op in ready for fact in makes(op)}


def made_by_tasks(left, tasks, sources):
    """Everything that can be made by the tasks, each on one worker, from the sources alone."""
    made, waiting = set(sources), list(tasks)
    at = dict.fromkeys(waiting, 0)
    moved = True
    while moved:
        moved = False
        for task in waiting:
            while at[task] < len(task.kinds):
                op = task.ops[at[task]]
                if not at[task]:
                    stash_is_there = left.before(op) is None and op.kind is not F
                    owner = left.owner.get((op.stage, op.microbatch))
                    assert task.worker == (owner if stash_is_there else None), task
                    assert stash_is_there or op.kind is F, task
                if not made.issuperset(left.from_neighbours(op)):
                    break
                made |= set(makes(op))
                at[task] += 1
                moved = True
    return made


def check_todo(todo, shape, holders, facts):
    left = Left(shape, holders, facts)
    ops = [op for task in todo.tasks for op in task.ops]
    assert len(ops) == len(set(ops))
    assert set(ops) == least_operations(left)
    check_sources(todo, left, facts)
    wanted, tasks = defaultdict(set), defaultdict(list)
    for fact in left.wanted():
        wanted[fact.microbatch].add(fact)
    for task in todo.tasks:
        tasks[task.microbatch].append(task)
    assert tasks.keys() == wanted.keys()  # an operation needs its own micro-batch's facts only
    for m in wanted:
        assert made_by_tasks(left, tasks[m], todo.sources) >= wanted[m]
        for task in tasks[m]:
            shorter = task._replace(kinds=task.kinds[:-1])
            fewer = [shorter if other == task else other for other in tasks[m]]
            fewer = [other for other in fewer if other.kinds]
            assert not made_by_tasks(left, fewer, todo.sources) >= wanted[m]
    assert list(todo.committed) == sorted(left.committed)
    check_reductions(todo, shape, holders, facts)


def check_sources(todo, left, facts):
    needed = {fact for task in todo.tasks for op in task.ops for fact in left.from_neighbours(op)}
    assert todo.sources.keys() == needed & left.tensors
    for fact, source in todo.sources.items():
        has = facts[source].activations if fact.what is ACTIVATION else facts[source].gradients
        assert (fact.stage, fact.microbatch) in has


def check_reductions(todo, shape, holders, facts):
    for stage in range(shape.stages):
        holding = sorted(one for one in holders if stage in holders[one])
        stepped = [one for one in holding if one in facts and stage in facts[one].stepped]
        behind = tuple(one for one in holding if one not in stepped)
        expected = [Reduction(stage, behind, min(stepped, default=None))] if behind else []
        assert [r for r in todo.reductions if r.stage == stage] == expected


# --- Every state of a short pipeline, against every set of operations.


def states(stages):
    """Progress, kept activation, kept gradient and stepped, for each stage."""
    one = list(product(MicrobatchProgress, (False, True), (False, True), (False, True)))
    return product(one, repeat=stages)


def of_state(state):
    shape, facts = Shape(1, len(state), 1), {}
    for stage, (progress, has_activation, has_gradient, stepped) in enumerate(state):
        place = frozenset({(stage, 0)})
        facts[WorkerId(0, stage)] = Facts(progress={(stage, 0): progress})
        facts[WorkerId(1, stage)] = Facts(
            activations=place if has_activation else frozenset(),
            gradients=place if has_gradient else frozenset(),
            stepped=frozenset({stage} if stepped else ()),
        )
    return shape, grid(2, len(state)), facts


def check_against_every_set_of_operations(state):
    shape, holders, facts = of_state(state)
    todo = still_to_do(shape, holders, facts)
    check_todo(todo, shape, holders, facts)
    left = Left(shape, holders, facts)
    wanted = set(left.wanted())
    planned = {op for task in todo.tasks for op in task.ops}
    everything = [Op(s, kind, 0) for s in range(shape.stages) for kind in (F, B, W)]
    for ops in chain.from_iterable(combinations(everything, n) for n in range(len(everything) + 1)):
        if made_by_operations(left, ops) >= wanted:
            assert planned <= set(ops)


def test_no_set_of_operations_without_all_the_planned_finishes_any_state_of_two_stages():
    for state in states(2):
        check_against_every_set_of_operations(state)


def test_no_set_of_operations_without_all_the_planned_finishes_states_of_three_stages():
    for state in Random(7).sample(list(states(3)), 60):
        check_against_every_set_of_operations(state)


def test_every_state_of_three_stages_is_finished_with_the_least_operations():
    for state in Random(8).sample(list(states(3)), 1500):
        shape, holders, facts = of_state(state)
        check_todo(still_to_do(shape, holders, facts), shape, holders, facts)


# --- A step that is really run up to a moment, with deaths, also while the lost work is redone.


def check_and_adopt(world, random):
    facts = world.facts()
    todo = still_to_do(world.shape, world.holders, facts)
    check_todo(todo, world.shape, world.holders, facts)
    planned = {op for task in todo.tasks for op in task.ops}
    assert not planned & set().union(*(world.finished[one] for one in world.holders))
    world.adopt(random, todo)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_a_step_with_deaths_at_any_moment_ends_with_nothing_alive_done_again(seed):
    random = Random(seed)
    shape, holders, lanes = cross_routed(random)
    world = World(shape, holders, lanes)
    num_operations = sum(map(len, lanes.values()))
    earliest = random.choice([0, num_operations * 2 // 3])  # late is when some have stepped
    world.run_some(random, random.randint(earliest, num_operations))
    world.kill(random)
    check_and_adopt(world, random)
    for _ in range(random.randint(0, 2)):  # more deaths, while the lost work is redone
        world.run_some(random, random.randint(0, sum(len(ops) for _, ops in world.threads)))
        world.kill(random)
        check_and_adopt(world, random)
    world.run_some(random, 10 * num_operations)
    assert all(world.stepped[one] == set(stages) for one, stages in world.holders.items())
    todo = still_to_do(shape, world.holders, world.facts())
    assert (todo.tasks, todo.sources, todo.reductions) == ((), {}, ())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_in_which_facts_are_told_does_not_matter(seed):
    random = Random(seed)
    world = World(*cross_routed(random))
    world.run_some(random, random.randint(0, 100))
    world.kill(random)
    facts = world.facts()
    told = [list(facts.items()), list(world.holders.items())]
    for items in told:
        random.shuffle(items)
    first = still_to_do(world.shape, world.holders, facts)
    second = still_to_do(world.shape, dict(told[1]), dict(told[0]))
    assert first == second
    assert list(first.sources) == list(second.sources)


# --- Each rule by itself.


def test_a_step_that_has_not_begun_is_all_to_do():
    todo = ask(Shape(1, 2, 2), (), {})
    assert todo.tasks == tuple(Task(s, m, (F, B, W), None) for m in range(2) for s in range(2))
    assert todo.sources == {}
    assert todo.reductions == (
        Reduction(0, (worker("0.0"),), None),
        Reduction(1, (worker("0.1"),), None),
    )


def test_progress_on_two_workers_is_refused():
    with pytest.raises(ScheduleError, match=r"micro-batch 1 at stage 0 .* on 0\.0 and 1\.0"):
        ask(Shape(2, 1, 2), (), {"1.0": done(0, 1), "0.0": done(0, 0, 1, progress=FORWARDED)})


def test_progress_none_is_no_progress():
    none = done(0, 0, progress=NONE)
    todo = ask(Shape(2, 1, 2), (), {"0.0": none, "1.0": none})
    assert todo.tasks == (Task(0, 0, (F, B, W), None), Task(0, 1, (F, B, W), None))


def test_a_sum_on_a_live_worker_stays_though_its_neighbours_died():
    facts = {"0.1": done(1, 0, 1), "1.0": Facts(), "1.2": Facts()}
    todo = ask(Shape(2, 3, 2), ("0.0", "0.2"), facts)
    assert {task.stage for task in todo.tasks} == {0, 2}


def test_a_lost_sum_is_made_again_from_what_the_neighbours_kept_and_by_nobody_else():
    facts = {"0.0": done(0, 0), "0.2": done(2, 0)}
    todo = ask(Shape(1, 3, 1), (), facts)
    assert todo.tasks == (Task(1, 0, (F, B, W), None),)
    assert todo.sources == {
        Fact(ACTIVATION, 0, 0): worker("0.0"),
        Fact(GRADIENT, 2, 0): worker("0.2"),
    }


def test_a_lost_activation_is_made_by_the_stages_before_and_a_lost_gradient_by_those_after():
    # Stages 0, 1, 3 and 4 have stepped; of the workers that ran micro-batch 0 none is left.
    facts = {f"1.{s}": Facts(stepped=frozenset({s})) for s in (0, 1, 3, 4)}
    todo = ask(Shape(2, 5, 2), [f"0.{s}" for s in range(5)], facts | {"1.2": done(2, 1)})
    assert todo.committed == (0, 1, 3, 4)
    assert todo.tasks == (
        Task(0, 0, (F,), None),
        Task(1, 0, (F,), None),
        Task(2, 0, (F, B, W), None),
        Task(3, 0, (F, B), None),
        Task(4, 0, (F, B), None),
    )
    assert todo.reductions == (Reduction(2, (worker("1.2"),), None),)


def test_a_forwarded_next_stage_makes_the_gradient_and_its_own_weight_gradient_where_it_is():
    facts = {"0.0": done(0), "0.1": done(1, 0, progress=FORWARDED)}
    todo = ask(Shape(1, 2, 1), (), facts)
    assert todo.tasks == (Task(0, 0, (F, B, W), None), Task(1, 0, (B, W), worker("0.1")))


def test_a_pending_weight_gradient_waits_on_its_worker_and_needs_nothing():
    todo = ask(Shape(1, 2, 1), (), {"0.0": done(0, 0, progress=GRADED), "0.1": done(1, 0)})
    assert todo.tasks == (Task(0, 0, (W,), worker("0.0")),)
    assert todo.sources == {}


def test_a_forward_run_again_for_a_lost_sum_serves_the_stage_after_it_too():
    todo = ask(Shape(1, 2, 1), (), {"0.0": Facts(), "0.1": Facts()})
    assert [task.kinds for task in todo.tasks] == [(F, B, W), (F, B, W)]


def test_a_committed_stage_only_catches_up_those_who_have_not_stepped():
    facts = {"1.0": Facts(stepped=frozenset({0})), "2.0": Facts(stepped=frozenset({0}))}
    todo = ask(Shape(4, 1, 4), ("3.0",), facts)
    assert todo.tasks == ()
    assert todo.reductions == (Reduction(0, (worker("0.0"),), worker("1.0")),)
    assert todo.reductions[0].catch_up


def test_a_stage_is_not_committed_by_a_worker_that_no_longer_holds_it():
    holders = {worker("0.0"): (0,), worker("0.1"): (1,), worker("1.0"): (1,)}
    told = done(0, 0)
    facts = {worker("1.0"): Facts(progress=told.progress, stepped=frozenset({0}))}
    todo = still_to_do(Shape(1, 2, 1), holders, facts)
    assert todo.committed == ()
    assert todo.tasks[0] == Task(0, 0, (F, B, W), None)


def test_who_changed_sides_takes_its_progress_out_of_the_step_but_not_its_kept_tensors():
    holders = {worker("0.0"): (0,), worker("1.0"): (1,)}
    facts = {worker("1.0"): done(0, 0)}
    todo = still_to_do(Shape(1, 2, 1), holders, facts)
    assert todo.tasks == (Task(0, 0, (F, B, W), None), Task(1, 0, (F, B, W), None))
    assert todo.sources == {Fact(ACTIVATION, 0, 0): worker("1.0")}


def test_a_tensor_is_taken_from_its_user_and_else_from_the_lowest_worker():
    copies = Facts(gradients=frozenset({(1, 0), (1, 1)}), activations=frozenset({(0, 1)}))
    user = Facts(progress={(0, 0): FORWARDED, (0, 1): SUMMED}, gradients=frozenset({(1, 0)}))
    stepped = Facts(gradients=frozenset({(1, 0)}), stepped=frozenset({1}))
    facts = {"0.0": copies, "0.1": stepped, "1.0": user, "1.1": copies}
    assert ask(Shape(2, 2, 2), (), facts).sources == {Fact(GRADIENT, 1, 0): worker("1.0")}
    facts["1.0"] = Facts(progress={(0, 0): FORWARDED, (0, 1): SUMMED})
    assert ask(Shape(2, 2, 2), (), facts).sources == {Fact(GRADIENT, 1, 0): worker("0.0")}


def test_a_stage_without_a_live_holder_is_named_as_lost():
    with pytest.raises(ScheduleError, match="state of stage 1, 2 is lost"):
        ask(Shape(1, 3, 1), ("0.1", "0.2"), {"0.0": done(0, 0)})


def test_facts_of_a_worker_that_is_not_live_are_refused():
    with pytest.raises(ScheduleError, match=r"worker 0\.0 tells facts but is not among the live"):
        ask(Shape(2, 1, 2), ("0.0",), {"0.0": done(0, 0)})


@pytest.mark.parametrize("told", [done(0, 2), Facts(gradients=frozenset({(1, 0)}))])
def test_facts_from_outside_the_shape_are_refused(told):
    with pytest.raises(ScheduleError, match=r"worker 0\.0 tells of micro-batch"):
        ask(Shape(2, 1, 2), (), {"0.0": told})
