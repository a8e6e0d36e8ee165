"""``holdfast simulate``: the hunt from the command line, and what it says of bad input."""

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.simulating import hunts
from holdfast.cli.simulating.simulate import EXAMPLES
from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.hunting import SomeSeeds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--pipelines or --machines: expected one of them, to know how many workers"),
        (["--hunt", "0"], "--hunt 0: expected 1 to"),
        (["--hunt", "-3"], "--hunt -3: expected 1 to"),
        (["--hunt", "3", "--seed", "-1"], "--seed -1: expected 0 to"),
        (["--hunt", "3", "--jobs", "0"], "--jobs 0: expected 1 to"),
        (["--hunt", "many"], "invalid int value: 'many'"),
        (["--world", "nowhere.txt"], "--world nowhere.txt: cannot be read"),
    ],
)
def test_bad_input_is_one_line(words, said, capsys):
    assert main(["simulate", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_hunt_tells_how_far_it_is_and_how_it_ended(capsys):
    assert main(["simulate", "--hunt", "4", "--seed", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4 of 4 seeds"
    assert said[-1].startswith("4 seeds from 2 on, ")


def test_a_hunt_that_is_interrupted_says_how_far_it_came(capsys, monkeypatch):
    several = iter([SomeSeeds(25, 7, None)])

    def interrupted(first, seeds):
        for found in several:
            return found
        raise KeyboardInterrupt

    monkeypatch.setattr(hunts, "hunted", interrupted)
    assert main(["simulate", "--hunt", "100", "--seed", "2"]) == 130
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("25 of 100 seeds, ")
    assert said.out.splitlines()[-1].startswith("interrupted: 25 seeds from 2 on")
    assert said.err == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [("deed 1 fly", "line 5: 'fly' is no deed"), ("set workers.restarts=-4", "must be 0 or more")],
)
def test_what_is_wrong_with_a_world_is_one_line(line, said, tmp_path, capsys):
    path = tmp_path / "world.txt"
    path.write_text(f"seed 1\nshape 2x2 4\nsteps 3\ncosts 1 1 1 0 0 0\n{line}\n")
    assert main(["simulate", "--world", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"--world {path}: " in lines[0]
    assert said in lines[0]


def test_a_failing_world_is_printed_and_can_be_run_again(tmp_path, capsys, monkeypatch):
    from holdfast.control.progress import checkpoints

    path = tmp_path / "world.txt"
    path.write_text(str(draw(3)))
    assert main(["simulate", "--world", str(path)]) == 0
    assert "all is well after" in capsys.readouterr().out
    monkeypatch.setattr(checkpoints.Checkpoints, "whole", lambda *given, **more: 1 // 0)
    assert main(["simulate", "--world", str(path)]) == 1
    assert main(["simulate", "--hunt", "1", "--seed", "3"]) == 1
    said = capsys.readouterr().out
    assert "seed 3: the run ended with: the coordinator failed" in said
    world = said[said.index("\n# ") + 1 :]
    path.write_text(world)
    assert main(["simulate", "--world", str(path)]) == 1


def test_the_world_of_the_help_example_is_there():
    (world,) = (words.split()[-1] for words in EXAMPLES if "--world" in words)
    assert (Path(__file__).parents[3] / world).is_file()
