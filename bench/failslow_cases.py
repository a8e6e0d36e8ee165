"""What the fail-slow bench runs: who is slow, when and how much, and the ways to answer it.

Only descriptions, and what the planner's bound allows in them; nothing is run here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from failstop_run import Job
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.join.costs import emulated_costs
from holdfast.planner.assign.roles import unmoved
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.planning import first_plan
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.prove.bounds import bound
from holdfast.planner.schedules import make
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import default_memory
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import steady_period_s
from recovery_cases import emulated, real

STAGES, PER_PIPELINE, OP_MS = 2, 8, 10
# Sixteen processes on two cores: what they do besides sleeping must stay small next to it.
MANY, LONG_OP_MS = 8, 30
# Baselines are learnt, then the healthy pace is measured, then come the disturbed steps; the
# steps after them show whether all is as before.
WARM_UP_STEPS, HEALTHY_STEPS, AFTER_STEPS = 14, 16, 16
FIRST = WARM_UP_STEPS + HEALTHY_STEPS  # disturbed step, counted from 0
SCHEDULE = "zero-bubble"
LEAST_LOSS = 0.03  # of a healthy step: below it there is nothing to remove
QUIET = ("checkpoint.every_steps=0", "checkpoint.at_end=false")

MODES = {"nothing": "observe", "falcon": "falcon", "restart": "observe", "holdfast": "holdfast"}
"""``mitigation.mode`` of each way. A restart is done by hand as soon as somebody is named."""
_COMPUTE = ("nothing", "falcon", "holdfast")
_LINK = ("nothing", "holdfast")  # the published way for links starts the processes again
_ALL = tuple(MODES)


class Slow(NamedTuple):
    """``begin``, ``end``: as shares of the disturbed steps; ``num_steps`` instead of the end."""

    subject: str  # a worker, or a link as in 0.0-0.1
    amount: str  # x2, +15ms
    begin: float = 0.0
    end: float = 1.0
    num_steps: int = 0

    def steps(self, num_disturbed: int) -> range:
        """Counted from the first disturbed one."""
        first = round(self.begin * num_disturbed)
        last = first + self.num_steps if self.num_steps else round(self.end * num_disturbed)
        return range(first, max(first + 1, min(last, num_disturbed)))

    def fault(self, num_disturbed: int) -> str:
        """As in ``--fault``, where steps count from 1."""
        steps = self.steps(num_disturbed)
        kind = "link" if self.is_link else "slow"
        first, last = FIRST + steps[0] + 1, FIRST + steps[-1] + 1
        return f"{kind} {self.subject} @ {first}-{last} {self.amount}"

    @property
    def is_link(self) -> bool:
        return "-" in self.subject

    @property
    def speed(self) -> float:
        return 1.0 if self.is_link else 1 / float(self.amount.removeprefix("x"))


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    pipelines: int
    slow: tuple[Slow, ...]
    ways: tuple[str, ...] = _COMPUTE
    is_headline: bool = False  # one slow worker
    op_ms: int = OP_MS  # of an emulated operation

    @property
    def shape(self) -> Shape:
        return Shape(self.pipelines, STAGES, self.pipelines * PER_PIPELINE)

    @property
    def subjects(self) -> list[str]:
        return sorted({slow.subject for slow in self.slow})

    def changes(self, num_disturbed: int) -> set[int]:
        """Steps of the run from which on somebody is slower or faster than before."""
        spans = [slow.steps(num_disturbed) for slow in self.slow]
        return {FIRST + step for span in spans for step in (span[0], span[-1] + 1)}

    def job(self, way: str, num_disturbed: int) -> Job:
        task = emulated(self.pipelines, STAGES, SCHEDULE, self.op_ms, PER_PIPELINE)
        return replace(
            task,
            steps=FIRST + num_disturbed + AFTER_STEPS,
            settings=(*task.settings, *QUIET, f"mitigation.mode={MODES[way]}"),
            faults=tuple(slow.fault(num_disturbed) for slow in self.slow),
        )


def _one(pipelines: int, factor: str, *, restart: bool = False) -> Case:
    return Case(
        name=f"{pipelines}x{STAGES} {factor}",
        pipelines=pipelines,
        slow=(Slow("1.0", factor),),
        ways=_ALL if restart else _COMPUTE,
        is_headline=True,
        op_ms=LONG_OP_MS if pipelines >= MANY else OP_MS,
    )


def _link(name: str, pipelines: int, subject: str, more_ms: int) -> Case:
    slow = (Slow(subject, f"+{more_ms}ms"),)
    return Case(name=f"{name} +{more_ms}ms", pipelines=pipelines, slow=slow, ways=_LINK)


def _several(num_slow: int) -> Case:
    """In one stage, where the others of that stage must help."""
    slow = tuple(Slow(f"{number}.1", "x1.9") for number in range(1, num_slow + 1))
    return Case(name=f"{num_slow} of 4 x1.9", pipelines=4, slow=slow)


def cases() -> dict[str, Case]:
    compound = (Slow("2.1", "x1.5", 0.0, 0.6), Slow("0.0-0.1", "+40ms", 0.2, 1.0))
    ladder = ("x1.08", 0.0, 0.25), ("x1.16", 0.25, 0.5), ("x1.25", 0.5, 1.0)
    bursts = tuple(Slow("1.0", "x2", begin, num_steps=3) for begin in (0.1, 0.4, 0.7))
    found = [
        *(_one(pipelines, "x1.5") for pipelines in (2, 4, 8)),
        _one(2, "x2"),
        *(_one(pipelines, "x2", restart=True) for pipelines in (4, 8)),
        _several(2),
        _several(3),
        *(_link("pipeline link", 2, "0.0-0.1", more_ms) for more_ms in (15, 40)),
        *(_link("reduction link", 4, "0.0-1.0", more_ms) for more_ms in (15, 40)),
        Case(name="compound", pipelines=4, slow=compound),
        Case(name="ladder", pipelines=4, slow=tuple(Slow("1.0", *step) for step in ladder)),
        Case(name="bursts", pipelines=2, slow=bursts),
    ]
    return {case.name: case for case in found}


def undisturbed(op_ms: int = OP_MS) -> dict[str, Job]:
    """In which nothing is injected."""
    found = {
        "emulated 2x2": emulated(2, 2, SCHEDULE, op_ms, PER_PIPELINE),
        "tiny GPT 2x2": real(2, 2),
    }
    return {name: replace(job, settings=(*job.settings, *QUIET)) for name, job in found.items()}


# --- what is possible ---


def costs_of(op_ms: int) -> Costs:
    op_s = op_ms / 1e3
    costs = emulated_costs({"F": op_s, "B": op_s, "W": op_s, "BW": 2 * op_s, "R": 0.0}, STAGES)
    assert costs is not None
    return costs


def problem_of(case: Case, speeds: Mapping[str, float], absent: str = "") -> Problem:
    """As the coordinator asks it, if it knew the true speeds. Links are taken to be as usual."""
    everyone = [WorkerId(d, s) for d in range(case.pipelines) for s in range(STAGES)]
    members = (w for w in everyone if str(w) != absent)
    return Problem(
        shape=case.shape,
        costs=costs_of(case.op_ms),
        memory=Memory(limit=float(default_memory(STAGES))),
        members=tuple(Member(w, w.stage, speeds.get(str(w), 1.0)) for w in members),
        two_stages=False,
        may_move=False,
    )


def predicted_healthy_s(case: Case) -> float:
    """Of the lanes that the run begins with."""
    costs = costs_of(case.op_ms)
    first = make(SCHEDULE, case.shape, costs, default_memory(STAGES), staggered=True)
    return steady_period_s(first, costs)


def bound_s(case: Case, num_disturbed: int, healthy_s: float) -> float:
    """What no plan can beat, on average over the disturbed steps, as measured time."""
    times = Counter(
        frozenset((s.subject, s.speed) for s in case.slow if step in s.steps(num_disturbed))
        for step in range(num_disturbed)
    )
    whole_s = 0.0
    for slow, count in times.items():
        problem = problem_of(case, {who: speed for who, speed in slow if speed < 1})
        whole_s += count * bound(Fleet.of(problem, unmoved(problem).stage_of)).period_s
    return whole_s / num_disturbed * healthy_s / predicted_healthy_s(case)


def shares_of(
    step_s: float, nothing_s: float | None, healthy_s: float, limit_s: float
) -> dict[str, float | None]:
    """Of the slowdown, and of what can be removed of it; None: there is nothing to remove."""
    if nothing_s is None or nothing_s - healthy_s < LEAST_LOSS * healthy_s:
        return {"removed": None, "of_possible": None}
    removed = (nothing_s - step_s) / (nothing_s - healthy_s)
    possible = (nothing_s - limit_s) / (nothing_s - healthy_s)
    worth = possible * (nothing_s - healthy_s) >= LEAST_LOSS * healthy_s
    return {"removed": removed, "of_possible": removed / possible if worth else None}


def lanes_without(case: Case, worker: str) -> Schedule:
    assert parse_worker(worker).pipeline < case.pipelines
    return first_plan(problem_of(case, {}, worker)).schedule()
