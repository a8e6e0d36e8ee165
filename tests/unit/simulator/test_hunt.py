"""The hunt: random worlds go well, deliberate bugs are found, a seed means the same everywhere."""

import subprocess
import sys
from dataclasses import replace

import pytest

from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.hunting import hunted, judge
from holdfast.simulator.hunt.shrinking import shrunk
from holdfast.simulator.messages.scenario import parse_scenario
from hunt_mutants import MUTANTS, applied

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_thirty_worlds_go_well():
    found = hunted(0, 30)
    assert found.failing is None, found.failing
    assert found.num_seeds == 30


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_more_worlds_go_well():
    """Always the same ones: make chaos looks at worlds that nobody has seen."""
    found = hunted(10_000, 75)
    assert found.failing is None, found.failing


@pytest.mark.parametrize("name", ["no-fence", "first-attempt", "half-sealed", "epoch-again"])
def test_a_deliberate_bug_is_found_soon(name):
    with applied(BY_NAME[name]):
        assert hunted(0, 30).failing is not None
    assert judge(draw(0)).wrong == ""


def test_a_failing_world_is_made_small_and_still_fails():
    with applied(BY_NAME["half-sealed"]):
        failing = hunted(0, 30).failing
        assert failing is not None
        small = shrunk(failing, most=40)
        assert small.kind == failing.kind
        assert judge(small.scenario).wrong == small.wrong
    assert parse_scenario(str(small.scenario)) == small.scenario
    size = len(str(small.scenario).splitlines())
    assert size < len(str(failing.scenario).splitlines())


def test_the_same_seed_is_the_same_run_whatever_the_hash_seed_and_whatever_ran_before():
    seeds = (3, 5, 11)
    code = (
        "from holdfast.simulator.hunt.drawing import draw\n"
        "from holdfast.simulator.hunt.hunting import judge\n"
        f"print([judge(draw(seed)).fingerprint for seed in {seeds}])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": number, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.strip()
        for number in ("1", "2")
    }
    assert said == {str([judge(draw(seed)).fingerprint for seed in seeds])}


def test_another_seed_is_another_run():
    assert judge(draw(3)).fingerprint != judge(draw(4)).fingerprint


def test_in_peace_nothing_goes_wrong_and_all_steps_are_done():
    drawn = draw(7)
    calm = judge(replace(drawn, faults=(), deeds=()))
    assert (calm.wrong, calm.ended) == ("", "finished")
