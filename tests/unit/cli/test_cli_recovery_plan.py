import argparse
import json
import subprocess
import sys
from itertools import pairwise

import pytest

from holdfast.cli import recovery_plan
from holdfast.errors import ConfigError

BASE = {
    "--stages": "16",
    "--microbatches": "256",
    "--activation": "839MB",
    "--forward": "3ms",
    "--backward": "6ms",
    "--bandwidth": "10GB",
    "--state": "1GB",
}


def words(**change):
    """The usual command; ``lost="3"`` adds or changes a flag, None leaves it out."""
    flags = BASE | {f"--{name}": value for name, value in change.items()}
    return [word for flag, value in flags.items() if value is not None for word in (flag, value)]


def run(*arguments):
    parser = argparse.ArgumentParser()
    recovery_plan.add_parser(parser.add_subparsers())
    args = parser.parse_args(["recovery-plan", *arguments])
    return args.run(args)


@pytest.fixture
def told(capsys):
    def tell(*more, **change):
        assert run(*words(**change), *more) == 0
        return capsys.readouterr().out

    return tell


@pytest.fixture
def numbers(told):
    return lambda **change: json.loads(told("--json", **change))


def test_the_table_compares_the_best_with_the_greedy_everything_and_nothing(told):
    lines = told(budget="900GB").splitlines()
    assert lines[0] == (
        "16 stages, 256 micro-batches; a checkpoint every 100 steps, 50 lost, 15 to replay them"
    )
    assert lines[1] == "budget 900 GB; all 15 boundaries take 2.517 TB"
    rows = [" ".join(line.split()) for line in lines[3:8]]
    assert rows == [
        "groups logged log expected worst",
        "best 6 5 839 GB 30.57 s 34.19 s proven least",
        "swift's greedy 6 5 839 GB 32.09 s 38.20 s",
        "log everything 16 15 2.517 TB 17.27 s 17.79 s",
        "log nothing 1 0 0 B 181.95 s 181.95 s",
    ]
    assert (
        "best: 5 of 15 boundaries logged, with a budget of 900 GB; no grouping is better" in lines
    )


def test_each_group_has_a_line_and_together_they_are_all_stages(told):
    lines = told(budget="900GB").splitlines()
    start = next(n for n, line in enumerate(lines) if line.split()[:2] == ["stages", "log"])
    runs = [line.split() for line in lines[start + 1 : lines.index("", start)]]
    assert len(runs) == 6
    edges = [tuple(map(int, row[0].split("-"))) for row in runs]
    assert edges[0][0] == 0
    assert edges[-1][1] == 15
    assert all(left[1] + 1 == right[0] for left, right in pairwise(edges))
    assert runs[0][1] == "-"
    assert runs[1][1:3] == ["167.8", "GB"]


def test_the_curve_tells_what_less_storage_costs(told):
    lines = [line.split() for line in told().splitlines() if " % = " in line]
    assert [row[0] for row in lines] == ["100", "75", "50", "25", "10"]
    expected_s = [float(row[6]) for row in lines]
    assert expected_s == sorted(expected_s)
    assert expected_s[0] < expected_s[-1]
    assert all(float(row[6]) <= float(row[10]) for row in lines)


def test_as_json_everything_is_there_and_adds_up(numbers):
    found = numbers(budget="900GB")
    assert found["budget_bytes"] == 900_000_000_000
    assert list(found["plans"]) == ["best", "greedy", "everything", "nothing"]
    best = found["plans"]["best"]
    assert best["num_bytes"] == 100 * 2 * 839_000_000 * len(best["boundaries"])
    assert best["expected_s"] == pytest.approx(sum(best["stage_s"]) / 16)
    assert best["proven"] is True
    assert [run[-1] for run in best["groups"]][:-1] == best["boundaries"]
    assert len(found["curve"]) == 5
    assert found["swift_model_s"] == pytest.approx(50 * 0.009 * (256 / 15))


def test_without_a_budget_all_boundaries_may_be_logged(numbers):
    found = numbers()
    assert found["budget_bytes"] is None
    assert found["plans"]["best"]["boundaries"] == list(range(15))


def test_a_budget_below_one_boundary_says_that_nothing_is_logged(told):
    out = told(budget="1GB")
    assert "the budget of 1 GB is too small for any boundary" in out
    assert "sends everyone back to the checkpoint" in out


def test_a_value_a_stage_and_a_value_a_boundary_are_taken_in_order(numbers):
    found = numbers(
        stages="3",
        forward="1ms,2ms,3s",
        backward="0s",
        activation="1MB,5MB",
        state=None,
        fixed="0s",
        helpers="1",
        lost="1",
        microbatches="2",
        bandwidth="1000GB",
    )
    everything = found["plans"]["everything"]
    assert everything["num_bytes"] == 100 * 2 * 6_000_000
    assert everything["stage_s"] == pytest.approx([0.002, 0.004, 6.0], abs=1e-4)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250us", 0.00025), ("20ms", 0.02), ("1.5s", 1.5), ("3", 3), ("2m", 120)]
)
def test_times_have_units(numbers, text, seconds):
    calm, late = numbers(restart="0s"), numbers(restart=text)
    nothing = [found["plans"]["nothing"]["expected_s"] for found in (calm, late)]
    assert nothing[1] - nothing[0] == pytest.approx(seconds)


def test_no_helpers_means_the_replacement_alone(numbers):
    alone, one = numbers(helpers="0"), numbers(helpers="1")
    assert alone == one
    assert alone["helpers"] == 1


def test_half_an_interval_is_lost_unless_told(numbers):
    assert numbers(interval="7")["lost_steps"] == 3.5
    assert numbers(interval="7", lost="7")["lost_steps"] == 7
    assert numbers(lost="0")["plans"]["nothing"]["expected_s"] == 60


def test_a_measured_step_replaces_the_one_worked_out(numbers):
    assert numbers(step="2s")["plans"]["nothing"]["expected_s"] == 60 + 50 * 2


def test_gradients_are_summed_over_the_network(numbers):
    def everything_s(**change):
        return numbers(helpers="2", **change)["plans"]["everything"]["expected_s"]

    more_s = everything_s(gradients="1GB", network="10GB/s") - everything_s()
    assert more_s == pytest.approx(50 * 2 * 0.1 / 2)


def test_checkpoints_have_a_disk_of_their_own(numbers):
    def everything_s(**change):
        return numbers(**change)["plans"]["everything"]["expected_s"]

    assert everything_s(disk="1GB") - everything_s() == pytest.approx(3 * (1 - 0.1))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"stages": "1"}, "--stages 1: expected 2 to 512"),
        ({"stages": "513"}, "--stages 513: expected 2 to 512"),
        ({"microbatches": "0"}, "--microbatches 0: expected 1 to 1,000,000,000"),
        ({"interval": "0"}, "--interval 0: expected 1 to 1,000,000,000"),
        ({"lost": "101"}, "--lost 101: expected 0 to 100"),
        ({"lost": "-1"}, "--lost -1: expected 0 to 100"),
        ({"helpers": "-1"}, "--helpers -1: expected 0 to 1,000,000,000"),
        ({"budget": "lots"}, "--budget=lots: write a size as 500MB, 2GB or 1.5TB"),
        ({"budget": "0GB"}, "--budget=0GB: must be above 0"),
        ({"budget": "9" * 400 + "GB"}, f"--budget {'9' * 40}: expected at most 1,000,000TB"),
        ({"bandwidth": ""}, "--bandwidth=: write a size as"),
        ({"bandwidth": "0B"}, "--bandwidth=0B: must be above 0"),
        ({"disk": "fast"}, "--disk=fast: write a size as"),
        ({"state": "1GB,2GB"}, "--state has 2 values: expected 1 for every stage, or 16"),
        (
            {"activation": "1MB,2MB"},
            "--activation has 2 values: expected 1 for every boundary, or 15",
        ),
        ({"activation": "1MB" + ",1MB" * 13 + ","}, "--activation=: write a size as"),
        ({"activation": "900000TB"}, "all boundaries take more than"),
        ({"forward": "quick"}, "--forward quick: expected a time up to 1e+09 s, e.g. 20ms"),
        ({"forward": "0s"}, "--forward 0s: expected more than no time"),
        ({"forward": "1ms" + ",1ms" * 14 + ",0ms"}, "expected more than no time"),
        ({"backward": "-1s"}, "--backward -1s: expected a time"),
        ({"backward": "nan"}, "--backward nan: expected a time"),
        ({"restart": "99999999h"}, "--restart 99999999h: expected a time up to 1e+09 s"),
        ({"fixed": "1 second"}, "--fixed 1 second: expected a time"),
        ({"step": "0s"}, "--step 0s: expected more than no time"),
        ({"network": "1GB"}, "expected both or neither"),
        ({"gradients": "1GB"}, "expected both or neither"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(change, expected):
    arguments = [
        f"{flag}={value}" for flag, value in zip(*[iter(words(**change))] * 2, strict=True)
    ]
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_as_many_stages_as_are_allowed_are_planned(numbers):
    found = numbers(stages="512", budget="20TB")
    assert found["plans"]["best"]["proven"]


def test_the_command_is_there_with_its_example_and_exit_code_two_on_bad_input():
    def holdfast(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "holdfast", "recovery-plan", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
        )

    shown = holdfast("--help")
    assert shown.returncode == 0
    assert "holdfast recovery-plan --stages 16 --microbatches 256 --budget 900GB" in shown.stdout
    bad = holdfast(*words(budget="much"))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "holdfast: --budget=much: write a size as 500MB, 2GB or 1.5TB\n"


def test_help_does_not_load_the_compiler():
    code = (
        "import sys, argparse\n"
        "from holdfast.cli import recovery_plan\n"
        "recovery_plan.add_parser(argparse.ArgumentParser().add_subparsers())\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
