"""Half-done steps planned from Inventories, and run to their end in a simulated cluster.

The cluster takes its tensors only from where the plan says that they come from.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from helpers.half_done import order_of
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.inventory.remainder import Dead, remainders
from holdfast.errors import ProtocolError, ScheduleError
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.remainder.facts import MicrobatchProgress
from holdfast.planner.schedules import NAMES
from holdfast.protocol.half_done import from_record, to_record
from holdfast.protocol.messages import Inventory
from holdfast.protocol.records import KeptRow, Source, VerdictRow
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Fact, Kind, Op, Shape, What, makes, needs, parse_op
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Schedule

F, B, W, BW, R = Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R
NONE, FORWARDED, GRADED, SUMMED = MicrobatchProgress
BEFORE = {F: NONE, B: FORWARDED, BW: FORWARDED, W: GRADED}
AFTER = {F: FORWARDED, B: GRADED, BW: SUMMED, W: SUMMED}
GOOD, BAD = VerdictRow(1.0, None, False), VerdictRow(9.0, 0.5, False)


def parts(ops):
    return [
        Op(op.stage, kind, op.microbatch)
        for op in ops
        if op.kind is not R
        for kind in ((B, W) if op.kind is BW else (op.kind,))
    ]


@dataclass
class Node:
    """A live worker. ``reduced - 1`` is settled, or applied speculatively."""

    worker: WorkerId
    stage: int
    reduced: int = 0
    oldest: int = 0
    attempt: int = 0
    settled: int = -1  # the last step
    progress: dict = field(default_factory=dict)
    again: dict = field(default_factory=dict)  # (step, micro-batch) run only for others
    kept: dict = field(default_factory=dict)  # (step, fact) that it made
    finished: dict = field(default_factory=dict)  # step -> operations of the current attempt
    inbox: set = field(default_factory=set)  # (step, attempt, fact, sender)
    heard: dict = field(default_factory=dict)  # step -> verdict
    lanes: list = field(default_factory=list)  # running steps still to run, the oldest first
    done: int = 0  # of the first of them

    def tell(self, epoch=1):
        kept = {step: ([], []) for step, _ in self.kept}
        for step, fact in self.kept:
            kept[step][fact.what is What.GRADIENT].append(fact.microbatch)
        return Inventory(
            worker=str(self.worker),
            epoch=epoch,
            reduced=self.reduced,
            oldest=self.oldest,
            attempt=self.attempt,
            progress={m: int(state) for m, state in self.progress.items()},
            kept=[KeptRow(step, *of_step) for step, of_step in kept.items()],
            verdicts={s: v for s, v in self.heard.items() if s >= self.oldest - 1},
            kept_bytes=0,
            done=self.done,
            commits=[],
            saving=0,
        )


class Cluster:
    def __init__(self, random):
        self.random = random
        self.staggered = random.random() < 0.8
        pipelines, stages = random.randint(2, 3), random.randint(1, 4)
        self.shape, self.order = order_of(
            random.choice(NAMES), pipelines, stages, random.randint(1, 3)
        )
        self.end_step = random.randint(2, 4)
        self.verdicts = [random.choice([GOOD, GOOD, BAD]) for _ in range(self.end_step)]
        self.nodes = {}
        for worker in (WorkerId(d, s) for d in range(pipelines) for s in range(stages)):
            self.nodes[worker] = Node(worker, worker.stage)
        self.go((), 0)

    # --- plans ---

    def go(self, running, first_step):
        """What a Proceed says: first the half-done steps, then a steady schedule."""
        self.steady, self.wholes = self._any_schedule(), {}
        self.lazy = {worker: self.random.choice([1, 1, 30]) for worker in self.nodes}
        for node in self.nodes.values():
            node.lanes, node.done, node.inbox, node.again = list(running), 0, set(), {}
            for step in range(first_step, self.end_step):
                attempt = node.attempt if step == node.reduced else 0
                node.lanes.append(self._whole(step, attempt))
        for node in self.nodes.values():
            self._settle_if_heard(node)
            for one in running:
                for fact, to in one.resend(node.worker):
                    assert (one.step, fact) in node.kept, f"{node.worker} has no {fact}"
                    self._send(one, fact, node.worker, to)

    def _whole(self, step, attempt):
        made = self.wholes.get((step, attempt)) or RunningStep.whole(step, attempt, self.steady)
        return self.wholes.setdefault((step, attempt), made)

    def _any_schedule(self):
        """Any holder may have any micro-batch; some have none."""
        lanes, routes = {worker: [] for worker in self.nodes}, {}
        busy = [n for n in self.nodes.values() if self.random.random() < 0.9]
        for stage in range(self.shape.stages):
            holders = [n.worker for n in self.nodes.values() if n.stage == stage]
            some = [n.worker for n in busy if n.stage == stage] or holders
            for m in range(self.shape.microbatches):
                routes[stage, m] = self.random.choice(some)
        for _, op in self.order:
            if op.kind is not R:
                lanes[routes[op.stage, op.microbatch]].append(op)
        for worker, lane in lanes.items():
            lane.append(Op(self.nodes[worker].stage, R))
        return Schedule(self.shape, lanes)

    # --- running ---

    def run_some(self, most):
        for _ in range(most):
            actions = [(act, n) for n in self.nodes.values() for act in (self._settles, self._runs)]
            actions.sort(key=lambda action: self.random.random() * self.lazy[action[1].worker])
            if not any(act(node) for act, node in actions):
                return

    def _verdict_is_out(self, step):
        reduced = {node.stage for node in self.nodes.values() if node.reduced > step}
        heard = any(step in node.heard for node in self.nodes.values())
        return heard or len(reduced) == self.shape.stages

    def _settles(self, node):
        step = node.reduced - 1
        if node.settled == step or not self._verdict_is_out(step):
            return False
        node.heard[step] = self.verdicts[step]
        self._settle_if_heard(node)
        return True

    def _settle_if_heard(self, node):
        step = node.reduced - 1
        if node.settled == step or step not in node.heard:
            return
        node.settled, node.oldest = step, max(node.oldest, step)
        node.kept = {key: None for key in node.kept if key[0] >= step}
        if self.staggered and node.heard[step] == BAD and node.attempt == 0:
            self._take_back(node)

    def _take_back(self, node):
        step = node.reduced
        node.attempt, node.progress = 1, {}
        node.kept = {key: None for key in node.kept if key[0] < step}
        node.finished[step] = []
        at = next((i for i, one in enumerate(node.lanes) if one.step == step), None)
        if at is not None and node.lanes[at].attempt == 0:
            node.lanes[at] = self._whole(step, 1)
            node.done = node.done if at else 0

    def _runs(self, node):
        while node.lanes and node.done == len(node.lanes[0].schedule.lanes[node.worker]):
            node.lanes, node.done = node.lanes[1:], 0
        if not node.lanes:
            return False
        one = node.lanes[0]
        op = one.schedule.lanes[node.worker][node.done]
        trusts = self.staggered and op.kind is not R
        if one.step == node.reduced and node.settled < one.step - 1 and not trusts:
            return False
        assert node.reduced > one.step or node.attempt == one.attempt
        return self._reduces(node, one) if op.kind is R else self._computes(node, one, op)

    def _computes(self, node, one, op):
        inputs = [fact for fact in needs(op, self.shape) if fact.stage != op.stage]
        origin = one.origin(op)
        assert (origin is None) == (not inputs)
        if origin is not None and origin != node.worker:
            message = (one.step, one.attempt, inputs[0], origin)
            if message not in node.inbox:
                return False
            node.inbox.remove(message)
        assert node.oldest <= one.step, f"{node.worker} has not the weights for {op}"
        for_others = node.reduced > one.step
        stash = node.again if for_others else node.progress
        place = (one.step, op.microbatch) if for_others else op.microbatch
        assert stash.get(place, NONE) == BEFORE[op.kind], f"{node.worker} cannot run {op}"
        stash[place] = AFTER[op.kind]
        if not for_others:
            node.finished.setdefault(one.step, []).append(op)
        self._keep_and_send(node, one, op)
        node.done += 1
        return True

    def _keep_and_send(self, node, one, op):
        travelling = [f for f in makes(op) if f.what in (What.ACTIVATION, What.GRADIENT)]
        for fact in travelling:
            node.kept[one.step, fact] = None
        for to in one.receivers(op):
            self._send(one, travelling[0], node.worker, to)

    def _send(self, one, fact, sender, to):
        if to != sender:
            self.nodes[to].inbox.add((one.step, one.attempt, fact, sender))

    def _reduces(self, node, one):
        stage, step = node.stage, one.step
        if stage in one.copies:
            source = self.nodes[one.copies[stage]]
            assert source.stage == stage
            assert source.reduced > step >= source.oldest
        else:
            others = [self.nodes[worker] for worker in one.reducers(stage)]
            if not all(other.reduced > step or self._is_at_r(other, one) for other in others):
                return False
            if all(other.reduced == step for other in others):
                summed = [m for o in others for m, p in o.progress.items() if p is SUMMED]
                assert sorted(summed) == list(range(self.shape.microbatches))
        node.reduced, node.attempt, node.progress = step + 1, 0, {}
        node.done += 1
        self._settle_if_heard(node)
        return True

    def _is_at_r(self, node, one):
        if not node.lanes or node.lanes[0].step != one.step:
            return False
        if node.settled < one.step - 1:
            return False
        assert node.lanes[0] == one
        return one.schedule.lanes[node.worker][node.done].kind is R

    # --- changes ---

    def kill_one(self):
        """Nobody whose stage would be lost. Who it was, and what it had finished."""
        nodes = list(self.nodes.values())
        shared = [n for n in nodes if sum(o.stage == n.stage for o in nodes) > 1]
        if not shared:
            return []
        node = self.random.choice(shared)
        del self.nodes[node.worker]
        return [
            Dead(node.worker, node.stage, step, tuple(node.finished.get(step, ())))
            for step in (node.reduced - 1, node.reduced)
        ]

    def let_one_join(self):
        """It has the last settled state of its stage, and nothing older."""
        stage = self.random.randrange(self.shape.stages)
        peers = [node for node in self.nodes.values() if node.stage == stage]
        source = max(peers, key=lambda node: node.settled)
        reduced = source.settled + 1
        if reduced < max(node.reduced for node in peers) - 1:
            return
        worker = WorkerId(max(worker.pipeline for worker in self.nodes) + 1, stage)
        bad = self.staggered and source.heard.get(reduced - 1) == BAD
        self.nodes[worker] = Node(
            worker, stage, reduced, oldest=reduced, attempt=int(bad), settled=reduced - 1,
            heard=dict(source.heard),
        )  # fmt: skip

    def plan(self, dead):
        stages = {worker: node.stage for worker, node in self.nodes.items()}
        inventories = {worker: node.tell() for worker, node in self.nodes.items()}
        limit = self.random.choice([1.0, 3.0, 100.0])
        return remainders(
            problem(self.shape, stages, limit),
            stages,
            inventories,
            staggered=self.staggered,
            end_step=self.end_step,
            dead=dead,
        )


def problem(shape, stages, limit=100.0):
    return Problem(
        shape=shape,
        costs=Costs.uniform(shape.stages, fused_s=1.8, link_s=0.1),
        memory=Memory(limit=limit),
        members=tuple(Member(worker, stage) for worker, stage in stages.items()),
    )


def check_plan(cluster, plan, dead):
    redone = []
    for one in plan.running:
        assert one == from_record(to_record(one))
        assert one.schedule.lanes.keys() == cluster.nodes.keys()
        planned = parts(op for lane in one.schedule.lanes.values() for op in lane)
        assert len(planned) == len(set(planned)), "the same operation twice"
        for node in cluster.nodes.values():
            if node.reduced > one.step or node.attempt == one.attempt:
                finished = parts(node.finished.get(one.step, ()))
                assert not set(finished) & set(planned), "finished work is done again"
        lost = {op for d in dead if d.step == one.step for op in parts(d.done)}
        redone += lost & set(planned)
    for one in dead:  # what only the dead had begun is begun anew
        redone += parts(one.done) if one.step >= plan.first_step else []
    assert sorted(map(str, plan.redone)) == sorted(map(str, redone))
    steps = [one.step for one in plan.running]
    assert steps == list(range(plan.first_step - len(steps), plan.first_step))
    assert plan.first_step <= cluster.end_step


def seen_in(cluster, plan):
    """Which of the situations that matter this is."""
    yield f"{len(plan.running)} running"
    for one in plan.running:
        yield from ["a copy"] * bool(one.copies)
        yield from ["a second attempt"] * one.attempt
        for node in cluster.nodes.values():
            at_step = node.reduced == one.step
            has_work = any(op.kind is not R for op in one.schedule.lanes[node.worker])
            yield from ["run for others"] * (has_work and node.reduced > one.step)
            yield from ["sent again"] * bool(one.resend(node.worker))
            yield from ["a void attempt"] * (at_step and node.attempt < one.attempt)
            yield from ["cannot run it"] * (node.oldest > one.step)
            yield from ["empty-handed"] * (at_step and not node.progress)
    yield from ["redone"] * bool(plan.redone)


def live_through(seed):
    """One cluster with up to three changes, run to its end; the situations that were met."""
    random = Random(seed)
    cluster, seen = Cluster(random), []
    num_operations = cluster.end_step * 3 * cluster.shape.stages * cluster.shape.microbatches
    for _ in range(random.randint(1, 3)):
        cluster.run_some(random.randint(0, num_operations))
        dead = [one for _ in range(random.randint(0, 2)) for one in cluster.kill_one()]
        if random.random() < 0.3:
            cluster.let_one_join()
        plan = cluster.plan(dead)
        check_plan(cluster, plan, dead)
        seen += seen_in(cluster, plan)
        if random.random() < 0.1:
            cluster.end_step = plan.first_step
            seen.append("interrupted")
        for node in cluster.nodes.values():
            node.heard |= plan.verdicts
        cluster.go(plan.running, plan.first_step)
    cluster.run_some(20 * num_operations)
    for node in cluster.nodes.values():
        assert node.reduced == cluster.end_step, f"seed {seed}: worker {node.worker} is stuck"
        assert node.settled == node.reduced - 1
        final = {step + 1 for step, verdict in node.heard.items() if verdict == BAD}
        left = {m for m in node.inbox if not cluster.staggered or m[1] == (m[0] in final)}
        assert not left, f"seed {seed}: worker {node.worker} was sent what it did not need"
    return seen


NUM_CASES = 300
SITUATIONS = {
    "0 running", "1 running", "2 running", "a copy", "a second attempt", "run for others",
    "sent again", "a void attempt", "cannot run it", "empty-handed", "redone", "interrupted",
}  # fmt: skip


def test_all_half_done_steps_end_whoever_dies_whenever():
    seen = [situation for seed in range(NUM_CASES) for situation in live_through(seed)]
    assert set(seen) >= SITUATIONS


# --- plain examples ---

TWO = Shape(2, 2, 2)
GRID = {WorkerId(d, s): s for d in range(2) for s in range(2)}


def tell(reduced=0, **told):
    told = {"oldest": max(0, reduced - 1), "attempt": 0, "progress": {}, "kept": [], **told}
    told = {
        "verdicts": {},
        "kept_bytes": 0,
        "done": 0,
        "saving": 0,
        "commits": [],
        "epoch": 2,
        **told,
    }
    return Inventory(worker="", reduced=reduced, **told)


def planned(inventories, *, shape=TWO, limit=100.0, staggered=True, end_step=9, dead=()):
    """``inventories``: worker -> Tell; their stages are as in their names."""
    inventories = {parse_worker(name): one for name, one in inventories.items()}
    stages = {worker: worker.stage for worker in inventories}
    asked = problem(shape, stages, limit)
    return remainders(asked, stages, inventories, staggered=staggered, end_step=end_step, dead=dead)


def lanes_of(running):
    return {
        str(worker): " ".join(map(str, lane)) for worker, lane in running.schedule.lanes.items()
    }


def everyone(reduced=0, **told):
    return {str(worker): tell(reduced, **told) for worker in GRID}


def test_a_step_that_nobody_has_begun_is_left_to_the_steady_schedule():
    plan = planned(everyone(3))
    assert (plan.running, plan.first_step, plan.num_operations, plan.length_s) == ((), 3, 0, 0)


def test_only_what_a_dead_worker_had_finished_is_done_again():
    # 1.1 had run 1F1 and 1BW1; 1.0 had not got the gradient. Pipeline 0 had finished its work.
    inventories = {
        "0.0": tell(progress={0: SUMMED}, kept=[KeptRow(0, [0], [])]),
        "0.1": tell(progress={0: SUMMED}, kept=[KeptRow(0, [], [0])]),
        "1.0": tell(progress={1: FORWARDED}, kept=[KeptRow(0, [1], [])]),
    }
    dead = [Dead(WorkerId(1, 1), 1, 0, (parse_op("1F1"), parse_op("1BW1")))]
    plan = planned(inventories, dead=dead)
    (step,) = plan.running
    assert lanes_of(step) == {"0.0": "0R", "0.1": "1F1 1BW1 1R", "1.0": "0BW1 0R"}
    assert step.sources == {Fact(What.ACTIVATION, 0, 1): WorkerId(1, 0)}
    assert sorted(map(str, plan.redone)) == ["1B1", "1F1", "1W1"]
    assert (plan.first_step, plan.num_operations) == (1, 3)
    assert plan.length_s == pytest.approx(0.1 + 1 + 1.8 + 0.1 + 1.8, rel=1e-3)


def test_what_a_dead_worker_did_in_another_step_is_not_called_redone():
    dead = [Dead(WorkerId(1, 1), 1, 4, (parse_op("1F1"),))]
    inventories = {"0.0": tell(5, progress={0: FORWARDED}), "0.1": tell(5)}
    assert planned(inventories, dead=dead).redone == ()


def test_who_has_not_reduced_yet_gets_a_copy_from_who_has():
    plan = planned({**everyone(4), "1.1": tell(3)})
    (step,) = plan.running
    assert (step.step, step.copies, plan.first_step) == (3, {1: WorkerId(0, 1)}, 4)
    assert lanes_of(step) == {"0.0": "", "0.1": "", "1.0": "", "1.1": "1R"}


def test_stages_that_are_a_step_apart_make_two_running_steps():
    inventories = {
        "0.0": tell(4, progress={0: FORWARDED}, kept=[KeptRow(3, [0, 1], []), KeptRow(4, [0], [])]),
        "0.1": tell(3, progress={0: SUMMED, 1: GRADED}, kept=[KeptRow(3, [], [0, 1])]),
    }
    plan = planned(inventories)
    assert [one.step for one in plan.running] == [3, 4]
    assert lanes_of(plan.running[0]) == {"0.0": "", "0.1": "1W1 1R"}
    assert plan.running[1].sources == {Fact(What.ACTIVATION, 0, 0): WorkerId(0, 0)}
    assert plan.first_step == 5


def test_work_of_an_attempt_that_is_void_does_not_count():
    begun = {"progress": {0: SUMMED, 1: SUMMED}, "kept": [KeptRow(4, [0, 1], [])]}
    knows = tell(
        4, attempt=1, verdicts={3: BAD}, progress={0: FORWARDED}, kept=[KeptRow(4, [0], [])]
    )
    plan = planned({"0.0": knows, "1.0": tell(4, **begun), "0.1": tell(4)})
    (step,) = plan.running
    assert step.attempt == 1
    assert plan.verdicts == {3: BAD}
    forwards = [op for lane in lanes_of(step).values() for op in lane.split() if "F" in op]
    assert sorted(forwards) == ["0F1", "1F0", "1F1"]


def test_a_verdict_that_one_has_heard_voids_the_attempt_of_all():
    plan = planned({"0.0": tell(4, progress={0: FORWARDED}), "0.1": tell(4, verdicts={3: BAD})})
    assert (plan.running, plan.first_step) == ((), 4)


@pytest.mark.parametrize("bad", [BAD, VerdictRow(float("nan"), None, True)])
def test_a_global_optimizer_has_no_second_attempts(bad):
    inventories = {"0.0": tell(4, progress={0: FORWARDED}), "0.1": tell(4, verdicts={3: bad})}
    (step,) = planned(inventories, staggered=False).running
    assert step.attempt == 0
    assert planned(inventories, staggered=True).running == ()


def test_an_attempt_that_was_told_counts_also_without_its_verdict():
    inventories = {"0.0": tell(4, attempt=1, progress={0: FORWARDED}), "0.1": tell(4)}
    (step,) = planned(inventories).running
    assert step.attempt == 1


LOST_GRADIENT = {
    # Stage 0 still needs the gradient of micro-batch 1 that died with its sender at stage 1.
    "0.0": tell(3, progress={0: SUMMED, 1: FORWARDED}, kept=[KeptRow(3, [0, 1], [])]),
    "1.1": tell(4, kept=[KeptRow(3, [], [0])]),
}


def test_a_stage_that_has_stepped_runs_a_lost_gradient_again_on_old_weights():
    (step,) = planned(LOST_GRADIENT).running
    assert lanes_of(step) == {"0.0": "0BW1 0R", "1.1": "1F1 1B1"}


def test_who_joined_after_the_step_leaves_its_work_to_those_who_have_old_weights():
    (step,) = planned({**LOST_GRADIENT, "0.1": tell(4, oldest=4)}).running
    assert lanes_of(step) == {"0.0": "0BW1 0R", "0.1": "", "1.1": "1F1 1B1"}


def test_who_stands_aside_still_sends_again_what_it_kept():
    kept = tell(4, oldest=4, kept=[KeptRow(3, [], [1])])
    (step,) = planned({**LOST_GRADIENT, "0.1": kept}).running
    assert lanes_of(step) == {"0.0": "0BW1 0R", "0.1": "", "1.1": ""}
    assert step.resend(WorkerId(0, 1)) == [(Fact(What.GRADIENT, 1, 1), WorkerId(0, 0))]


def test_who_joined_after_the_step_is_not_asked_for_a_copy_of_its_gradient():
    # All that reduced step 3 at stage 1 are dead but one that only copied the result.
    inventories = {
        "0.0": tell(4, kept=[KeptRow(3, [0, 1], [])]),
        "0.1": tell(4, oldest=4),
        "1.1": tell(3, progress={0: SUMMED}, kept=[KeptRow(3, [], [0])]),
    }
    (step,) = planned(inventories).running
    assert lanes_of(step) == {"0.0": "", "0.1": "", "1.1": "1F1 1BW1 1R"}
    assert step.copies == {}
    assert step.reducers(1) == (WorkerId(1, 1),)


def test_lost_work_that_nobody_has_the_weights_for_is_refused_in_words():
    inventories = {**LOST_GRADIENT, "1.1": tell(4, oldest=4, kept=[KeptRow(3, [], [0])])}
    with pytest.raises(ScheduleError, match=r"1F1 of step 3 .* stage 1 .* go back to a checkpoint"):
        planned(inventories)


def test_no_step_runs_from_the_end_on():
    begun = everyone(4, progress={}, kept=[KeptRow(4, [0], [])])
    assert [one.step for one in planned(begun, end_step=5).running] == [4]
    plan = planned(begun, end_step=4)
    assert (plan.running, plan.first_step) == ((), 4)


def test_finishing_beats_a_memory_limit():
    # Forwarded, but its activation was not kept: the forward must run again where there is no room.
    inventories = {"0.0": tell(progress={0: FORWARDED}), "0.1": tell()}
    (step,) = planned(inventories, shape=Shape(1, 2, 1), limit=1.0).running
    assert lanes_of(step)["0.0"] == "0F0 0BW0 0R"


def test_other_troubles_than_memory_are_passed_on():
    with pytest.raises(ScheduleError, match="the state of stage 1 is lost"):
        planned({"0.0": tell(progress={0: FORWARDED})})


def test_members_that_cannot_be_so_far_apart_can_only_go_back():
    with pytest.raises(ScheduleError, match="steps apart"):
        planned({"0.0": tell(1_000_000), "0.1": tell(3)}, end_step=2_000_000)


def test_a_member_that_has_not_told_is_refused():
    asked = problem(TWO, GRID)
    with pytest.raises(ScheduleError, match=r"worker 0\.0 is a member or told, but not both"):
        remainders(asked, GRID, {}, staggered=True, end_step=9)
    inventories = {worker: tell() for worker in GRID}
    few = problem(TWO, {WorkerId(0, 0): 0})
    with pytest.raises(ScheduleError, match=r"worker 0\.1 is a member or is in the planner's"):
        remainders(few, GRID, inventories, staggered=True, end_step=9)


def test_verdicts_are_those_of_all_and_must_agree():
    nan = VerdictRow(float("nan"), None, True)
    inventories = {"0.0": tell(4, verdicts={2: GOOD, 3: nan}), "0.1": tell(4, verdicts={3: nan})}
    assert planned(inventories).verdicts.keys() == {2, 3}
    inventories["0.1"] = tell(4, verdicts={2: BAD})
    with pytest.raises(ProtocolError, match=r"workers 0\.0 and 0\.1 tell of different verdicts"):
        planned(inventories)


# --- where tensors come from and go to ---


def step_of(*lines, shape=TWO, **given):
    lanes = {}
    for line in lines:
        name, _, ops = line.partition(":")
        lanes[parse_worker(name)] = tuple(map(parse_op, ops.split()))
    return RunningStep(0, 0, Schedule(shape, lanes), **given)


CROSSED = "0.0: 0F0 0F1 0BW0 0BW1 0R", "0.1: 1F0 1BW0 1R", "1.1: 1F1 1B1 1W1 1R", "1.0: 0R"


def test_in_a_whole_step_tensors_go_from_lane_to_lane():
    step = RunningStep.whole(7, 1, step_of(*CROSSED).schedule)
    assert (step.step, step.attempt) == (7, 1)
    origins = {op: step.origin(parse_op(op)) for op in ("0F1", "1F1", "1B1", "1W1", "0BW1", "0R")}
    assert {op: str(worker) for op, worker in origins.items() if worker} == {
        "1F1": "0.0",
        "0BW1": "1.1",
    }
    receivers = {op: step.receivers(parse_op(op)) for op in ("0F1", "1F1", "1B1", "1BW0", "0R")}
    assert {op: " ".join(map(str, to)) for op, to in receivers.items() if to} == {
        "0F1": "1.1",
        "1B1": "0.0",
        "1BW0": "0.0",
    }
    assert not any(step.resend(worker) for worker in GRID)
    assert step.reducers(0) == (WorkerId(0, 0), WorkerId(1, 0))


def test_what_exists_is_sent_again_by_who_has_it_and_not_by_who_makes_it_anew():
    gradient = Fact(What.GRADIENT, 1, 1)
    step = step_of("0.0: 0BW1", "0.1: 1F1 1BW1", "1.1:", sources={gradient: WorkerId(1, 1)})
    assert step.origin(parse_op("0BW1")) == WorkerId(1, 1)
    assert step.resend(WorkerId(1, 1)) == [(gradient, WorkerId(0, 0))]
    assert step.receivers(parse_op("1BW1")) == ()


def test_who_has_kept_what_it_needs_itself_sends_nothing():
    kept = Fact(What.ACTIVATION, 0, 1)
    step = step_of("0.1: 1F1 1BW1", sources={kept: WorkerId(0, 1)})
    assert step.origin(parse_op("1F1")) == WorkerId(0, 1)
    assert step.resend(WorkerId(0, 1)) == []


def test_an_input_that_comes_from_nowhere_is_an_error():
    with pytest.raises(ScheduleError, match="1F1 needs the activation of micro-batch 1 at stage 0"):
        step_of("0.1: 1F1 1BW1").origin(parse_op("1F1"))


RECORD = to_record(
    step_of(
        *CROSSED, sources={Fact(What.ACTIVATION, 0, 1): WorkerId(1, 0)}, copies={1: WorkerId(0, 1)}
    )
)


def test_a_running_step_comes_back_from_a_message():
    assert RECORD.sources == [("activation", 0, 1, "1.0")]
    assert RECORD.copies == {1: "0.1"}
    assert to_record(from_record(RECORD)) == RECORD


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "lanes"},
        {"sources": [Source("activation", 2, 1, "1.0")]},
        {"sources": [Source("activation", 0, 2, "1.0")]},
        {"sources": [Source("activation", 0, 1, "9.9")]},
        {"copies": {2: "0.1"}},
        {"copies": {1: "9.9"}},
    ],
)
def test_a_record_that_is_no_running_step_is_refused(wrong):
    with pytest.raises(ScheduleError):
        from_record(RECORD._replace(**wrong))
