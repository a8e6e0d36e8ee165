"""Ask the planner: who would do what, with these workers, and how long a step would take."""

from collections.abc import Iterable, Mapping
from typing import Literal

from holdfast.planner.plan import Plan
from holdfast.planner.planning import first_plan, refine
from holdfast.planner.question import costs_of, problem_of, shape_of
from holdfast.schedule.costs import Costs


def plan(
    *,
    pipelines: int,
    stages: int,
    microbatches: int,
    dead: Iterable[str] = (),
    slow: Mapping[str, float] | None = None,
    slow_links: Mapping[str, float] | None = None,
    costs: Mapping[str, float] | Costs | None = None,
    memory: int | None = None,
    optimizer: Literal["staggered", "global"] = "staggered",
    moves: bool = True,
    second_stages: bool = True,
    refined: bool = True,
) -> Plan:
    """The best plan for a step, with dead and slow workers and slow links.

    ``slow`` is the speed of workers (0.5: takes twice as long), ``slow_links`` the seconds of a
    transfer (``{"0.1-0.2": 0.5}``), ``costs`` the seconds of ``F``, ``B``, ``W``, ``BW``, ``R``
    and ``link`` (1, 1, 1, 2, 0, 0), ``memory`` the micro-batches in flight a worker and stage it
    holds. ``refined=False``: the plan there is at once.

    >>> import holdfast as hf
    >>> answer = hf.plan(pipelines=2, stages=2, microbatches=8, dead=["1.0"], refined=False)
    >>> answer.period_s >= answer.bound.period_s
    True
    >>> sorted(map(str, answer.schedule().lanes))
    ['0.0', '0.1', '1.1']
    """
    shape = shape_of(pipelines, stages, microbatches)
    problem = problem_of(
        shape,
        costs if isinstance(costs, Costs) else costs_of(costs or {}, stages),
        memory=memory,
        dead=dead,
        slow=(slow or {}).items(),
        slow_links=(slow_links or {}).items(),
        optimizer=optimizer,
        moves=moves,
        second_stages=second_stages,
    )
    if not refined:
        return first_plan(problem)
    *_, best = refine(problem)
    return best
