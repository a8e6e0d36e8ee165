"""A step that is really run up to a moment, with deaths, also while the lost work is redone."""

from functools import cache
from itertools import chain

from holdfast.cluster import WorkerId
from holdfast.planner.remainder.facts import Facts, MicrobatchProgress
from holdfast.planner.schedules import NAMES, make
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op, Shape, What, needs
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.validity import check, walk

F, B, W, BW, R = Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R
NONE, FORWARDED, GRADED, SUMMED = MicrobatchProgress
ACTIVATION = What.ACTIVATION


def grid(pipelines, stages, dead=()):
    everyone = (WorkerId(d, s) for d in range(pipelines) for s in range(stages))
    return {one: (one.stage,) for one in everyone if str(one) not in dead}


@cache
def order_of(name, pipelines, stages, share):
    schedule = make(name, Shape(pipelines, stages, pipelines * share), Costs.uniform(stages), 4)
    return schedule.shape, walk(schedule).order


def cross_routed(random):
    """Lanes in which any holder may have any micro-batch, and some workers hold two stages."""
    pipelines, stages = random.randint(2, 4), random.randint(1, 4)
    shape, order = order_of(random.choice(NAMES), pipelines, stages, random.randint(1, 3))
    holders = grid(pipelines, stages)
    for one in holders:
        if random.random() < 0.2:
            holders[one] = tuple(sorted({one.stage, random.randrange(stages)}))
    routes, lanes = {}, {one: [] for one in holders}
    for home, op in order:
        if op.kind is not R:
            others = [one for one in holders if op.stage in holders[one]]
            choice = random.choice([home, random.choice(others)])
            lanes[routes.setdefault((op.stage, op.microbatch), choice)].append(op)
    for one, lane in lanes.items():
        lane += [Op(stage, R) for stage in holders[one]]
    check(Schedule(shape, lanes))
    return shape, holders, lanes


class World:
    """Live workers, what each has, and what each still means to do."""

    def __init__(self, shape, holders, lanes):
        self.shape, self.holders = shape, dict(holders)
        self.stash = {one: {} for one in holders}  # place -> progress, of re-runs too
        self.again = {one: set() for one in holders}  # places run again without W
        self.activations = {one: set() for one in holders}
        self.gradients = {one: set() for one in holders}
        self.stepped = {one: set() for one in holders}
        self.finished = {one: set() for one in holders}
        self.threads = [(one, list(lane)) for one, lane in lanes.items()]

    def facts(self):
        return {
            one: Facts(
                progress={
                    place: progress
                    for place, progress in self.stash[one].items()
                    if place not in self.again[one]
                },
                activations=frozenset(self.activations[one]),
                gradients=frozenset(self.gradients[one]),
                stepped=frozenset(self.stepped[one]),
            )
            for one in self.holders
        }

    def exists(self, fact):
        place = (fact.stage, fact.microbatch)
        if fact.what is What.WEIGHT:
            return any(self.stash[one].get(place) == SUMMED for one in self.holders)
        kept = self.activations if fact.what is ACTIVATION else self.gradients
        return any(place in kept[one] for one in self.holders)

    def ready(self, one, op):
        if op.kind is R and any(op.stage in self.stepped[other] for other in self.holders):
            return True
        stash = self.stash[one].get((op.stage, op.microbatch), NONE)
        wanted = {F: NONE, B: FORWARDED, BW: FORWARDED, W: GRADED, R: NONE}[op.kind]
        outside = [f for f in needs(op, self.shape) if f.stage != op.stage or op.kind is R]
        return stash == wanted and all(map(self.exists, outside))

    def run(self, one, op):
        place = (op.stage, op.microbatch)
        if op.kind is R:
            self.stepped[one].add(op.stage)
            return
        if place not in self.again[one]:
            self.finished[one] |= {Op(op.stage, Kind(kind), op.microbatch) for kind in op.kind}
        self.stash[one][place] = {F: FORWARDED, B: GRADED, BW: SUMMED, W: SUMMED}[op.kind]
        if op.kind is F:
            self.activations[one].add(place)
        if op.kind in (B, BW):
            self.gradients[one].add(place)

    def run_some(self, random, most):
        for _ in range(most):
            ready = [(one, ops) for one, ops in self.threads if ops and self.ready(one, ops[0])]
            if not ready:
                break
            one, ops = random.choice(ready)
            self.run(one, ops.pop(0))

    def kill(self, random):
        """One to three; often of one pipeline, as then sender and receiver of a tensor are lost."""
        choice, pipeline = sorted(self.holders), random.randrange(2 * self.shape.pipelines)
        choice = [one for one in choice if one.pipeline == pipeline] or choice
        for one in random.sample(choice, min(random.randint(1, 3), len(choice))):
            rest = {other: stages for other, stages in self.holders.items() if other != one}
            if set(chain.from_iterable(rest.values())) == set(range(self.shape.stages)):
                self.holders = rest

    def adopt(self, random, todo):
        """Each task goes to whom it is bound, or to any holder; what was begun again is dropped."""
        self.threads = []
        for one in self.holders:
            for place in self.again[one]:
                self.stash[one].pop(place, None)
            self.again[one] = set()
        for task in todo.tasks:
            holding = sorted(one for one in self.holders if task.stage in self.holders[one])
            one = task.worker or random.choice(holding)
            if W not in task.kinds:
                assert (task.stage, task.microbatch) not in self.stash[one]
                self.again[one].add((task.stage, task.microbatch))
            self.threads.append((one, list(task.ops)))
        for reduction in todo.reductions:
            self.threads += [(one, [Op(reduction.stage, R)]) for one in reduction.workers]

    def follow(self, rest):
        """Take over the lanes of a planned rest; each is run strictly in its order."""
        for one in self.holders:
            for place in self.again[one]:
                self.stash[one].pop(place, None)
        kinds = {(task.stage, task.microbatch): set() for task in rest.todo.tasks}
        for task in rest.todo.tasks:
            kinds[task.stage, task.microbatch] |= set(task.kinds)
        without_weight = {place for place, of_place in kinds.items() if W not in of_place}
        for one, lane in rest.lanes.items():
            places = {(op.stage, op.microbatch) for op in lane if op.kind is not R}
            self.again[one] = places & without_weight
        self.threads = [(one, list(lane)) for one, lane in rest.lanes.items()]
