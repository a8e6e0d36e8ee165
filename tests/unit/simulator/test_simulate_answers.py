"""The words of ``holdfast simulate`` and its answers: table, JSON, pictures, a page."""

import argparse
import json

import pytest

from holdfast.baselines.policies.catalogue import BY_NAME
from holdfast.baselines.policies.constants import listed
from holdfast.cli.flags import in_flags
from holdfast.cli.simulating.arguments import add_arguments
from holdfast.cli.simulating.asked import asked_job, other_layouts
from holdfast.cli.simulating.hunts import add_flags
from holdfast.cli.simulating.simulate import run
from holdfast.errors import ConfigError
from holdfast.simulator.answers.values import averaged
from holdfast.simulator.intervals.outcome import Segment, TimeKind
from holdfast.simulator.worlds.files import read_world

SMALL = "--costs F=1,B=1,W=1 --pipelines 3 --stages 2 --microbatches 4 --mtbf 1h --days 0.5"
FEW = f"{SMALL} --policies holdfast,recycle,restart"


def parsed(words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    add_flags(parser)
    return parser.parse_args(words.split())


def called(words):
    return run(parsed(words))


def test_the_table_has_every_policy_the_best_first(capsys):
    assert called(FEW) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f" {name}") for name in ("holdfast", "recycle", "restart")]
    assert places == sorted(places)
    assert max(map(len, printed.splitlines())) <= 80


def test_json_has_what_the_table_has_and_the_source_of_every_constant(capsys):
    assert called(f"{FEW} --json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["job"]["pipelines"] == 3
    assert [row["policy"] for row in values["policies"]] == ["holdfast", "recycle", "restart"]
    for row in values["policies"]:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert all(one["source"] for one in row["constants"].values())


def test_a_picture_is_the_same_every_time(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg", "c.png"):
        assert called(f"{FEW} --picture {tmp_path / name}") == 0
    first, second = (tmp_path / "a.svg").read_bytes(), (tmp_path / "b.svg").read_bytes()
    assert first == second
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "holdfast" in capsys.readouterr().out


def test_the_page_needs_no_other_file(tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "a.html"
    assert called(f"{FEW} --html {page}") == 0
    text = page.read_text()
    assert "data:image/svg+xml;base64," in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "ReCycle" in text


def test_the_world_can_be_exported_and_read_again(tmp_path, capsys):
    file = tmp_path / "w.csv"
    assert called(f"{FEW} --json --export {file}") == 0
    first = json.loads(capsys.readouterr().out)
    assert read_world(file.read_text(), "w").num_losses == first["world"]["losses"]
    again = "--costs F=1,B=1,W=1 --pipelines 3 --stages 2 --microbatches 4"
    assert called(f"{again} --policies holdfast,recycle,restart --json --trace {file}") == 0
    assert json.loads(capsys.readouterr().out)["policies"] == first["policies"]


def test_a_packaged_trace_a_model_slowness_and_racks_can_be_asked_for(capsys):
    for words in (
        "--trace recycle --pipelines 24 --stages 2 --model 350m --policies holdfast",
        "--machines 48 --stages 4 --mtbf 2h --failures rack --slow --policies dropping",
        "--machines 12 --workers-a-machine 4 --mtbf 2h --maintenance 6h --policies oobleck",
    ):
        assert called(f"{words} --json") == 0
        (row,) = json.loads(capsys.readouterr().out)["policies"]
        assert row["samples"] > 0, words


def test_the_best_layout_comes_first(capsys):
    assert called(f"{SMALL} --optimise --json") == 0
    rows = json.loads(capsys.readouterr().out)["candidates"]
    rates = [row["samples_s"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert called(f"{SMALL} --optimise") == 0
    assert "D x S" in capsys.readouterr().out


@pytest.mark.parametrize("cost", ["--costs F=1,B=2,W=3", "--model 350m"])
def test_another_layout_has_the_same_work_and_samples(cost):
    args = parsed(f"{cost} --pipelines 3 --stages 2 --microbatches 4")
    job = asked_job(args)
    make = other_layouts(args, job)
    for pipelines, stages in ((1, 6), (2, 3), (5, 1), (3, 2)):
        other = make(pipelines, stages)
        assert other.samples_a_step == pytest.approx(job.samples_a_step)
        for name in ("forward_s", "input_s", "weight_s"):
            whole = sum(getattr(job.costs, name))
            assert sum(getattr(other.costs, name)) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trace nix --machines 8", "--trace nix: cannot be read"),
        ("--trace recycle --mtbf 2h --machines 24", "expected one of them"),
        ("--trace recycle --machines 24 --days 3", "recycle ends after 6.36 h"),
        ("--mtbf 2w --machines 8", "--mtbf 2w: expected a time"),
        ("--mtbf 1h --repair=-5m --machines 8", "--repair -5m: expected a time"),
        ("--mtbf 1h --machines 8 --days -1", "--days -1.0: expected a number above 0"),
        ("--mtbf 1h", "--pipelines or --machines"),
        ("--mtbf 1h --machines 8 --stages 64", "expected at most the 8 workers"),
        ("--pipelines 1 --stages 33", "33 stages for the 32 layers of 6.7b"),
        ("--pipelines 0 --stages 2", "--pipelines 0: expected at least 1"),
        ("--model 6.7b --pipelines 2 --stages 1", "ask for more stages"),
        ("--model 7t --machines 8", "--model 7t: expected one of"),
        ("--machines 4 --pipelines 4 --stages 2", "expected room for the job's 8 workers"),
        ("--machines 4 --workers-a-machine 3 --stages 2 --pipelines 2", "expected a divisor"),
        ("--machines 8 --policies comet", "policy comet: expected one of"),
        ("--machines 8 --constant x", "--constant x: expected policy.name=number"),
        ("--machines 8 --picture a.gif", "--picture a.gif: expected a file that ends in"),
        ("--machines 8 --price -1", "--price -1.0: expected a number 0 or more"),
        (
            "--machines 8 --utilisation 3",
            "--utilisation 3.0: expected a number above 0 and at most",
        ),
        ("--machines 99999999999999999999", "expected at least 1 and at most 200,000"),
        ("--pipelines 200000 --stages 2", "400,000 workers: expected at most 200,000"),
        ("--machines 8 --days 1e9 --slow", "--days 1000000000.0: expected a number above 0 and"),
        ("--machines 200000 --days 10000 --slow", "expected at most 1,000,000; ask for fewer"),
        ("--machines 8 --days 9999 --maintenance 1s --rack 1", "expected at most 1,000,000; ask"),
        ("--machines 8 --rack 0", "--rack 0: expected at least 1"),
        ("--machines 8 --workers-a-machine -1", "--workers-a-machine -1: expected at least 1"),
        ("--from nowhere", "--from nowhere: holds no events"),
        ("--from nowhere --model 350m", "expected one of them"),
        ("--costs F=-1 --machines 8", "cost forward_s"),
    ],
)
def test_bad_input_is_said_in_one_line(words, message):
    with pytest.raises(ConfigError) as raised:
        called(words)
    assert message in in_flags(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("value", ["0", "1e-320", "1e300", "nan"])
@pytest.mark.parametrize("policy", list(BY_NAME))
def test_a_constant_of_any_size_is_used_or_refused(policy, value, capsys):
    for row in listed(BY_NAME[policy].constants_type()):
        words = f"--constant {policy}.{row.name}="
        said = ""
        try:
            called(f"{SMALL} --policies {policy} {words}{value}")
        except ConfigError as why:
            said = in_flags(why)
        assert not said or (said.startswith(words) and "expected a number" in said)


@pytest.mark.parametrize("name", ["restart.save_overhead", "bamboo.share", "holdfast.over_plan"])
def test_what_is_divided_by_is_above_0(name):
    with pytest.raises(ConfigError, match="expected a number above 1e-06 and at most 1e\\+15"):
        called(f"{SMALL} --constant {name}=0")


def test_a_timeline_is_averaged_by_parts():
    segments = [
        Segment(0.0, 15.0, TimeKind.EFFECTIVE, 2.0, 1),
        Segment(15.0, 20.0, TimeKind.STALLED, 0.0, 1),
    ]
    assert averaged(segments, 20.0, 2) == [2.0, 1.0]
