"""Compiled or plain, with Numba or without: the same plans."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_planner_properties import draw

from helpers.plans import asked
from helpers.wide import every
from holdfast.planner import planning
from holdfast.planner.planning import best_plan, first_plan, refine
from holdfast.planner.problem import Problem

HERE = Path(__file__).parent
NUM_SUBPROCESS = 12

# Prints the plans for random problems; "{before}" is run before anything is imported.
PRINT_PLANS = """
import sys
sys.path.append({tests!r})
{before}
from holdfast.planner import planning
from test_planner_twin import small, text

planning.NUM_TRIALS = 10
for number in range({count}):
    print(text(list(planning.refine(small(f"twin-{{number}}")))))
"""


def small(seed: str) -> Problem:
    """The first random problem whose step has few operations: plain Python is 100 times slower."""
    number, problem = 0, draw(seed)
    while problem.shape.microbatches * problem.shape.stages > 60:
        number += 1
        problem = draw(f"{seed}-{number}")
    return problem


def text(plans: list[planning.Plan]) -> str:
    return "\n".join(
        f"{plan.period_s!r} {plan.reason} {plan.moves}\n{plan.schedule().dumps()}" for plan in plans
    )


PROBLEMS = [
    *(small(f"plain-{number}") for number in range(40)),
    asked(8, 4, 8, dead=["7.3"], link_s=0.05),  # helpers pay
]


@pytest.fixture
def few_trials(monkeypatch):
    monkeypatch.setattr(planning, "NUM_TRIALS", 10)


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize("number", every(3, range(41)))
def test_plans_do_not_depend_on_compiling(number):
    problem = PROBLEMS[number]
    assert text(list(refine(problem, plain=True))) == text(list(refine(problem, plain=False)))


@pytest.mark.usefixtures("few_trials")
def test_the_random_problems_meet_every_kind_of_routing():
    names = {plan.routing.name for problem in PROBLEMS for plan in refine(problem)}
    assert names == {
        "relabelled pipelines",
        "home routes",
        "joined routes",
        "two stages on some workers",
    }
    assert {problem.staggered for problem in PROBLEMS} == {True, False}


def test_the_first_plan_and_the_best_do_not_depend_on_compiling(monkeypatch):
    monkeypatch.setattr(planning, "NUM_TRIALS", 3)
    problem = small("ends")
    for plan in (first_plan, best_plan):
        assert text([plan(problem, plain=True)]) == text([plan(problem, plain=False)])


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"NUMBA_DISABLE_JIT": "1"}),
        ("sys.modules['numba'] = None", {}),
    ],
    ids=["without compiling", "without Numba"],
)
def test_plans_do_not_depend_on_numba(before, environment):
    script = PRINT_PLANS.format(tests=str(HERE.parents[1]), before=before, count=NUM_SUBPROCESS)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=HERE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    expected = [text(list(refine(small(f"twin-{number}")))) for number in range(NUM_SUBPROCESS)]
    assert ran.stdout == "\n".join(expected) + "\n"
