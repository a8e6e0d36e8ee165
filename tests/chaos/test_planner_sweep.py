"""Random clusters in random health, thousands if asked: every plan is sound and as good as it says.

HOLDFAST_SWEEP sets how many tens of problems are tried, HOLDFAST_SWEEP_SEED which ones.
"""

import os

import pytest

from unit.test_planner_properties import draw, faults

NUM_SAMPLES = int(os.environ.get("HOLDFAST_SWEEP", "1"))
SEED = int(os.environ.get("HOLDFAST_SWEEP_SEED", "0"))
EACH = 10


@pytest.mark.parametrize("number", range(NUM_SAMPLES))
def test_every_plan_for_a_random_cluster_is_sound(number):
    for problem in (f"{SEED}-{number * EACH + more}" for more in range(EACH)):
        print(f"HOLDFAST_SWEEP_SEED={SEED} HOLDFAST_SWEEP={number + 1}: {problem}")  # noqa: T201
        assert faults(draw(problem)) == [], problem
