"""Random clusters in random health, thousands if asked: every plan is sound and as good as it says.

HOLDFAST_SWEEP sets how many tens of problems are tried, HOLDFAST_SEED which ones.
"""

import os

import pytest

from helpers.seed import SEED
from helpers.wide import first
from unit.planner.test_planner_properties import draw, faults

NUM_SAMPLES = int(os.environ.get("HOLDFAST_SWEEP", "4"))
EACH = 10


@pytest.mark.parametrize("number", first(1, range(NUM_SAMPLES)))
def test_every_plan_for_a_random_cluster_is_sound(number):
    for problem in (f"{SEED}-{number * EACH + more}" for more in range(EACH)):
        print(f"HOLDFAST_SEED={SEED} HOLDFAST_SWEEP={number + 1}: {problem}")  # noqa: T201
        assert faults(draw(problem)) == [], problem
