"""Worlds that have failed once, and the ways they are written; ``tests/worlds`` has them.

``holdfast simulate --hunt`` prints a failing world in this form; it is put there with the mistake
that it has found.
"""

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.hunting import judge
from holdfast.simulator.messages.scenario import parse_scenario

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


@pytest.mark.parametrize(
    "text", ["", "seed 1\n", "seed 1\nshape 2\nsteps 3\ncosts 1 1 1 0 0 0\n", "shape 2x2 4\n"]
)
def test_what_is_no_world_is_refused(text):
    with pytest.raises(ConfigError, match="not a world"):
        parse_scenario(text)


@pytest.mark.parametrize("deed", ["1 fly", "1 kill", "x kill 0.0", "kill"])
def test_a_deed_that_there_is_not_is_refused(deed):
    text = f"{draw(1)}deed {deed}\n"
    with pytest.raises(ConfigError):
        parse_scenario(text)
