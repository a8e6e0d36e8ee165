import argparse
from xml.etree import ElementTree

import pytest

from holdfast.cli import plan
from holdfast.errors import ConfigError

SMALL = ("--pipelines", "2", "--stages", "4", "--microbatches", "16", "--width", "100")


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    plan.add_parser(parser.add_subparsers())
    return plan.run(parser.parse_args(["plan", *words]))


def test_the_plan_is_drawn_with_its_period_bound_and_memory(capsys):
    assert run(*SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:8]] == [f"{d}.{s}" for d in (0, 1) for s in range(4)]
    assert "period          24 s a step" in lines
    assert "bound           24 s, set by the work of the busiest stage" in lines
    assert "period / bound  1.000" in lines
    assert "1f1b            33 s, 1.375 x this period" in lines
    assert "idle            0.0 % of the workers' time" in lines
    assert lines[-1].startswith("in flight       at most 8 micro-batches (worker 0.")


def test_the_limit_on_memory_is_kept_and_named(capsys):
    run(*SMALL, "--memory", "4")
    out = capsys.readouterr().out
    assert "set by memory: 4 micro-batches in flight" in out
    assert "at most 4 micro-batches" in out


def test_costs_and_optimizer_change_the_plan(capsys):
    run(*SMALL, "--optimizer", "global", "--schedule", "1f1b", "--costs", "F=2, BW=3,R=1")
    out = capsys.readouterr().out
    assert "period          56 s a step" in out
    assert "set by the global optimizer's barrier" in out


def test_the_svg_replaces_the_old_file_and_leaves_no_other(tmp_path):
    target = tmp_path / "plan.svg"
    target.write_text("old")
    run(*SMALL, "--svg", str(target))
    assert ElementTree.parse(target).getroot().tag.endswith("svg")
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["missing/plan.svg", "."])
def test_an_unwritable_file_is_one_clear_error_before_anything_is_drawn(tmp_path, capsys, name):
    with pytest.raises(ConfigError, match=r"--svg .*: cannot be written: "):
        run(*SMALL, "--svg", str(tmp_path / name))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--microbatches", "15"), "microbatches = 15: expected a multiple of pipelines = 2"),
        (("--stages", "0"), "stages = 0: expected at least 1"),
        (("--memory", "0"), "memory = 0: expected at least 1"),
        (("--width", "3"), "--width 3: expected at least 20"),
        (("--costs", "F"), "--costs: 'F': expected name=seconds"),
        (("--costs", "F=1,Q=2"), "--costs: 'Q=2': expected name=seconds"),
        (("--costs", "F=1,F=2"), "--costs: 'F=2': expected .* each name once"),
        (("--costs", "F=fast"), "--costs: 'F=fast': expected name=seconds"),
        (("--costs", "F=0"), "forward_s = .*expected numbers > 0"),
        (("--costs", "B=nan"), "input_s = .*expected finite numbers"),
    ],
)
def test_a_wrong_value_is_one_clear_error(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run(*SMALL, *words)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
