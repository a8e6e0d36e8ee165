"""Worlds that have failed once, and the ways they are written; ``tests/worlds`` has them.

``holdfast simulate --hunt`` prints a failing world in this form; it is put there with the mistake
that it has found.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.hunting import judge
from holdfast.simulator.messages.scenario import Deed, parse_scenario

FILES = sorted(Path(__file__).with_name("worlds").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_went_wrong_once_goes_well(path):
    found = judge(parse_scenario(path.read_text()))
    assert found.wrong == "", found.scenario


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_world_says_first_what_it_is_about(path):
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("seed", range(40))
def test_a_world_that_is_written_and_read_is_the_same(seed):
    drawn = draw(seed)
    assert parse_scenario(str(drawn)) == drawn


_WORLD = "seed 1\nshape 2x2 4\nsteps 3\ncosts 1 1 1 0 0 0\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a world: it has no line 'seed'"),
        ("seed 1\n# why\n\nshape 2\n", "line 4: shape '2': expected PIPELINESxSTAGES"),
        ("shape 2x2 3\n", "line 1: microbatches = 3: expected a multiple of"),
        ("steps 0\n", "line 1: steps '0': expected a number, at least 1"),
        ("costs 1 1\n", "line 1: costs '1 1': expected 6 to 8 numbers"),
        ("colour blue\n", "line 1: 'colour' is no word of a world; expected seed, "),
        (f"{_WORLD}steps 4\n", "line 5: a second 'steps'; expected one"),
        (f"{_WORLD}bad 1 odd\n", "line 5: bad '1 odd': expected a step, and clip or skip"),
        (f"{_WORLD}set checkpoint.every_steps=x\n", "line 5: checkpoint.every_steps='x'"),
        (f"{_WORLD}fault kill 0.0\n", "line 5: "),
        (f"{_WORLD}deed 1 fly\n", "line 5: 'fly' is no deed; expected one of kill, "),
        (f"{_WORLD}deed x kill 0.0\n", "line 5: 'x' is no time; expected seconds, #STIMULUS or"),
        (f"{_WORLD}deed Hlt.1+0 kill 0.0\n", "there is no event, message or effect 'Hlt'"),
        (f"{_WORLD}deed #7 kill 0.0\n", "line 5: #7 kill: only a crash is at a stimulus"),
        (f"{_WORLD}deed kill\n", "line 5: "),
        (f"{_WORLD}deed 1 stop 0.0 -3\n", "line 5: '-3': expected seconds"),
        (f"{_WORLD}deed 1 kill 7.0\n", "'1 kill 7.0': there is no worker 7.0 in 2x2"),
        (f"{_WORLD}deed 1 dies m4\n", "deed 1 dies m4: there is no machine 'm4'; expected m0"),
    ],
)
def test_what_is_no_world_is_refused_and_says_where(text, said):
    with pytest.raises(ConfigError) as refused:
        parse_scenario(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_deed_may_wait_for_what_happens():
    calm = replace(draw(7), faults=(), deeds=())
    told = parse_scenario(f"{calm}deed Proceed.1+0.3 kill 0.0\n")
    assert told.deeds == (Deed(0.3, "kill", ("0.0",), upon="Proceed", count=1),)
    assert judge(told).fingerprint != judge(calm).fingerprint
