import argparse
import os
import re
import subprocess
import sys
from functools import partial
from xml.etree import ElementTree

import pytest

from holdfast.cli import main, plan
from holdfast.cli.flags import in_flags
from holdfast.cli.report import plan as plan_report
from holdfast.errors import ConfigError
from holdfast.planner.prove import certificate, checker
from holdfast.schedule.timeline import timeline

SMALL = ("--pipelines", "2", "--stages", "4", "--microbatches", "16", "--width", "100")
WORKED = ("--pipelines", "3", "--stages", "4", "--microbatches", "18", "--width", "100")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    plan.add_parser(parser.add_subparsers())
    return parser.parse_args(["plan", *words])


def run(*words: str) -> int:
    return plan.run(parsed(*words))


@pytest.fixture
def told(capsys):
    """What a plan prints, by label, each line of it; the lanes under ``lanes``."""

    def tell(*words):
        assert run(*words) == 0
        lanes, _, summary = capsys.readouterr().out.partition("\n\n")
        found = {"lanes": lanes.splitlines(), "": []}
        head, *lines = summary.splitlines()
        label = ""
        for line in lines:
            label = line[:16].strip() or label
            found.setdefault(label, []).append(line[16:])
        return found | {"head": [head]}

    return tell


# --- fixed schedules ---


def test_a_fixed_schedule_is_drawn_with_its_period_bound_and_memory(capsys):
    assert run(*SMALL, "--schedule", "zero-bubble") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:8]] == [f"{d}.{s}" for d in (0, 1) for s in range(4)]
    assert "period          24 s a step" in lines
    assert "bound           24 s, set by the work of the busiest stage" in lines
    assert "period / bound  1.000" in lines
    assert "1f1b            33 s, 1.375 x this period" in lines
    assert "idle            0.0 % of the workers' time" in lines
    assert lines[-1].startswith("in flight       at most 8 micro-batches (worker 0.")


@pytest.mark.parametrize("memory", ["4", "1.0", "1S", "1.2"])
def test_the_limit_on_memory_is_kept_and_named(capsys, memory):
    run(*SMALL, "--schedule", "zero-bubble", "--memory", memory)
    out = capsys.readouterr().out
    assert "set by memory: 4 micro-batches in flight" in out
    assert "at most 4 micro-batches" in out


def test_costs_and_optimizer_change_the_schedule(capsys):
    run(*SMALL, "--optimizer", "global", "--schedule", "1f1b", "--costs", "F=2, BW=3,R=1")
    out = capsys.readouterr().out
    assert "period          56 s a step" in out
    assert "set by the global optimizer's barrier" in out


@pytest.mark.parametrize(
    "words",
    [
        *(("--dead", "0.1"), ("--slow", "0.1=0.5"), ("--slow-link", "0.1-0.2=1"), ("--first",)),
        *(("--no-moves",), ("--one-stage",), ("--move-cost", "0"), ("--horizon", "5")),
        *(("--compare",), ("--certify", "5s")),
    ],
)
def test_a_fixed_schedule_knows_no_faults_and_no_planner(words):
    with pytest.raises(ConfigError, match=f"--schedule gpipe .* no {words[0]} .*leave out"):
        run(*SMALL, "--schedule", "gpipe", *words)


# --- planned ---


def test_a_plan_with_nobody_missing_reaches_the_peak(told):
    found = told(*SMALL)
    assert [line.split()[0] for line in found["lanes"][:8]] == [
        f"{d}.{s}" for d in (0, 1) for s in range(4)
    ]
    assert found["head"] == ["planned, 2 x 4 workers, 16 micro-batches"]
    assert found["period"] == ["24 s a step"]
    assert found["throughput"] == [
        "1.375 of fault-free 1F1B (33 s a step)",
        "1.000 of the fault-free zero-bubble peak (24 s)",
    ]
    assert found["bound"] == ["24 s, set by work: the work of stage 0"]
    assert found["period / bound"] == ["1.000"]
    assert found["idle"] == ["0.0 % of the live workers' time"]
    assert found["moves"][0].startswith("none; one costs 48 s of training")
    assert "all workers are there" in found["reason"][0]


def test_a_plan_goes_around_the_dead_and_the_slow(told):
    words = ("--dead", "1.2", "--slow", "0.1=0.5", "--one-stage", "--width", "150")
    found = told(*WORKED, *words)
    names = [line.split()[0] for line in found["lanes"][:-1]]
    assert names == [f"{d}.{s}" for d in range(3) for s in range(4) if (d, s) != (1, 2)]
    assert found["head"] == ["planned, 3 x 4 workers (1 dead, 1 slow), 18 micro-batches"]
    assert found["period"] == ["27 s a step"]
    assert found["bound"] == ["27 s, set by work: the work of stage 2"]


def test_a_slow_worker_takes_longer_in_the_picture(told):
    words = ("--pipelines", "1", "--stages", "2", "--microbatches", "2", "--slow", "0.1=0.5")
    found = told(*words, "--width", "60")
    assert found["period"] == ["12 s a step"]
    assert found["lanes"][0].startswith("0.0 F-F-")
    assert found["lanes"][1].startswith("0.1 ..F---")


def given_period(found: list[float | None], *lanes, period_s=None, **options):
    found.append(period_s)
    return timeline(*lanes, period_s=period_s, **options)


def test_the_picture_has_the_planners_period(monkeypatch, tmp_path):
    """Which is known: to work it out again from all the lanes would take long."""
    monkeypatch.setattr(plan, "timeline", partial(given_period, found := []))
    run(*WORKED, "--first", "--one-stage", "--dead", "1.2", "--svg", str(tmp_path / "plan.svg"))
    assert found == [27]
    assert "<title>period 27 s</title>" in (tmp_path / "plan.svg").read_text()


def test_a_link_counts_in_the_picture(told):
    """The only way there is: 1 s of work and 5 s under way, there and back."""
    words = ("--pipelines", "1", "--stages", "2", "--microbatches", "1", "--slow-link")
    found = told(*words, "0.1-0.0=5", "--costs", "F=1,B=1,W=1", "--width", "150")
    assert found["period"] == ["15 s a step"]
    assert "." * 10 in found["lanes"][0]


@pytest.mark.parametrize(
    "words", [("--dead", "0.0,1.1", "2.2"), ("--dead", "0.0", "--dead", "1.1,2.2")]
)
def test_the_dead_can_be_listed_in_any_way(told, words):
    found = told(*WORKED, "--first", *words)
    assert found["head"] == ["planned, 3 x 4 workers (3 dead), 18 micro-batches"]


def test_moves_are_named_with_their_source_and_cost(told):
    many = ("--pipelines", "4", "--stages", "2", "--microbatches", "32", "--width", "150")
    dead = ("--dead", "0.1,1.1,2.1", "--move-cost", "7.5", "--horizon", "50", "--one-stage")
    found = told(*many, *dead)
    assert found["moves"] == [
        "1; one costs 7.5 s of training and must pay within 50 steps",
        "3.0 leaves stage 0 for stage 1: copies its state from 3.1, 7.5 s",
    ]
    stay = told(*many, *dead, "--no-moves")
    assert stay["moves"] == ["none, as --no-moves asks"]
    assert float(stay["period"][0].split()[0]) > float(found["period"][0].split()[0])


def test_a_move_that_cannot_pay_in_time_is_not_made(told):
    many = ("--pipelines", "4", "--stages", "2", "--microbatches", "32", "--dead", "1.1,2.1")
    assert told(*many, "--horizon", "1000")["moves"][0].startswith("1; one costs 48 s")
    assert told(*many, "--horizon", "1")["moves"][0].startswith("none; one costs 48 s")


def test_helpers_with_a_second_stage_are_named_unless_ruled_out(told):
    helped = told(*WORKED, "--dead", "1.2")
    assert all("also holds stage 2 and helps there" in line for line in helped["second stage"])
    *rows, key = helped["lanes"]
    assert "small letters another stage" in key
    helpers = [line.split()[0] for line in helped["second stage"]]
    assert [row.split()[0] for row in rows if {"f", "b", "x"} & set(row)] == helpers
    alone = told(*WORKED, "--dead", "1.2", "--one-stage")
    assert "second stage" not in alone
    assert alone["period"] == ["27 s a step"]


def test_the_first_plan_is_not_refined(told):
    assert told(*WORKED, "--dead", "1.2", "--first")["period"] == ["27 s a step"]
    assert float(told(*WORKED, "--dead", "1.2")["period"][0].split()[0]) < 27


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ((), "limit 8 a stage it holds (2 x stages)"),
        (("--memory", "6"), "limit 6 a stage it holds (--memory 6)"),
        (("--memory", "1.5"), "limit 6 a stage it holds (--memory 1.5: 1.5 x 4 stages)"),
        (("--memory", "1.5S"), "limit 6 a stage it holds (--memory 1.5S: 1.5 x 4 stages)"),
        (("--memory", "2s"), "limit 8 a stage it holds (--memory 2s: 2 x 4 stages)"),
    ],
)
def test_the_memory_limit_is_said_as_micro_batches(told, memory, said):
    found = told(*SMALL, *memory, "--width", "150")
    assert said in found["memory"][0]
    limit, peaks = int(said.split()[1]), found["memory"][1].removeprefix("by stage ").split()
    assert len(peaks) == 4
    assert max(map(float, peaks)) <= limit


def test_0_57_times_100_stages_are_57_micro_batches():
    assert plan.parse_memory("0.57", 100).num_microbatches == 57


@pytest.mark.parametrize("words", [("--dead", "1.2"), ("--dead", "1.2", "--one-stage")])
def test_the_memory_peaks_are_those_the_checker_counts(words):
    from holdfast.cli.report.plan import memory_peaks
    from holdfast.planner.planning import best_plan

    args = parsed(*WORKED, *words)
    shape = plan.shape_of(args.pipelines, args.stages, args.microbatches)
    room = plan.parse_memory("8", 4)
    problem = plan.problem_of(args, shape, plan.parse_costs("", 4), room)
    found = best_plan(problem)
    by_stage, by_worker = memory_peaks(found)
    assert by_worker == checker.memory_peaks(found.schedule(), problem)
    assert max(by_stage) <= max(by_worker.values())


def test_the_worked_example_is_compared_with_published_policies(capsys):
    run(*WORKED, "--dead", "1.2", "--memory", "8", "--compare")
    table = capsys.readouterr().out.partition("of peak\n")[2].splitlines()
    names = {name.strip(): line for line in table for name in [line.partition("  ")[0]]}
    periods = {name: float(line[len(name) :].split()[0]) for name, line in names.items()}
    assert [
        periods[name] for name in ("re-routing only", "+ split backward", "+ staggered optimizer")
    ] == [36, 29, 27]
    assert periods["fault-free 1F1B"] == 27
    assert periods["Holdfast, nobody missing"] == 19
    assert periods["Holdfast"] < 27
    assert names["+ split backward"].split()[-4:-2] == ["0.931", "0.621"]


def test_a_certificate_says_that_a_plan_is_optimal(told):
    words = ("--pipelines", "2", "--stages", "2", "--microbatches", "8", "--certify", "30s")
    found = told(*words)
    assert found["certificate"] == ["optimal: no order on these routes has a shorter period"]


@pytest.mark.parametrize(
    ("optimum_s", "bound_s", "proven", "said"),
    [
        (26.0, 26.0, True, "on these routes 26 s is the optimum: this plan takes 3.8% more"),
        (None, 25.0, False, "optimum is 25 to 27 s, so this plan takes at most 8.0% more"),
        (26.0, 25.0, False, "optimum is 25 to 26 s, so this plan takes at most 8.0% more"),
        (None, 27.00001, False, "optimal: no order on these routes has a shorter period"),
    ],
)
def test_a_certificate_names_the_gap_that_is_left(
    told, monkeypatch, optimum_s, bound_s, proven, said
):
    answer = certificate.Certificate(optimum_s, bound_s, proven, 1.0)
    monkeypatch.setattr(plan_report, "certify", lambda *args, **options: answer)
    found = told(*WORKED, "--dead", "1.2", "--one-stage", "--certify", "2m", "--width", "150")
    assert said in found["certificate"][0]
    assert ("not proven in 120 s" in found["certificate"][0]) == ("at most" in said)


@pytest.mark.parametrize(("text", "limit_s"), [("30s", 30), ("30", 30), ("2m", 120), ("0.5", 0.5)])
def test_a_time_limit_is_in_seconds_or_minutes(text, limit_s):
    assert plan.parse_limit_s(text) == limit_s


def test_of_many_lanes_the_first_are_drawn_and_the_others_counted(capsys, tmp_path):
    target = tmp_path / "plan.svg"
    words = ("--stages", "2", "--first", "--svg", str(target))
    run("--pipelines", "140", "--microbatches", "140", *words)
    out = capsys.readouterr().out
    rows = [line for line in out.partition("\n\n")[0].splitlines() if line[0].isdigit()]
    assert len(rows) == 64
    assert "the first 64 lanes; 216 more are left out" in out
    assert f"{target}: the first 256 lanes; 24 more are left out" in out
    texts = [element.text for element in ElementTree.parse(target).iter() if element.text]
    assert "127.1" in texts
    assert "128.0" not in texts


def test_a_step_that_is_too_large_to_draw_is_planned_nevertheless(capsys):
    words = ("--pipelines", "64", "--stages", "32", "--microbatches", "4096", "--first")
    run(*words, "--dead", "1.2")
    out = capsys.readouterr().out
    assert out.startswith("not drawn: the step has 524,288 operations and messages: expected at")
    assert "planned, 64 x 32 workers (1 dead)" in out


def test_help_loads_neither_compiler_nor_solver_nor_torch():
    code = (
        "import argparse, sys\n"
        "from holdfast.cli import plan\n"
        "parser = argparse.ArgumentParser()\n"
        "plan.add_parser(parser.add_subparsers())\n"
        "try:\n    parser.parse_args(['plan', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'numba', 'ortools', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# --- files and errors ---


@pytest.mark.parametrize("schedule", ["planned", "1f1b"])
def test_the_svg_replaces_the_old_file_and_leaves_no_other(tmp_path, schedule):
    target = tmp_path / "plan.svg"
    target.write_text("old")
    run(*SMALL, "--schedule", schedule, "--svg", str(target))
    root = ElementTree.parse(target).getroot()
    assert root.tag.endswith("svg")
    assert list(tmp_path.iterdir()) == [target]


def forbid_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first_plan", "refine"):
        monkeypatch.setattr(plan, name, lambda *_, **__: pytest.fail("planned in vain"))


@pytest.mark.parametrize("name", ["missing/plan.svg", "."])
def test_an_unwritable_file_is_one_clear_error_before_anything_is_drawn(
    tmp_path, capsys, monkeypatch, name
):
    forbid_planning(monkeypatch)
    with pytest.raises(ConfigError, match=r"--svg .*: cannot be written: "):
        run(*SMALL, "--svg", str(tmp_path / name))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--microbatches", "15"), "microbatches = 15: expected a multiple of pipelines = 2"),
        (("--stages", "0"), "stages = 0: expected at least 1"),
        (("--stages", "90000"), "--pipelines 2 x --stages 90000: expected at most 100,000 workers"),
        (("--width", "3"), "--width 3: expected at least 20"),
        (("--costs", "F"), "--costs: 'F': expected name=seconds"),
        (("--costs", "F=1,Q=2"), "--costs: 'Q=2': expected name=seconds"),
        (("--costs", "F=1,F=2"), "--costs: 'F=2': expected .* each name once"),
        (("--costs", "F=fast"), "--costs: 'F=fast': expected name=seconds"),
        (("--costs", "F=0"), "forward_s = .*expected numbers > 0"),
        (("--costs", "B=nan"), "input_s = .*expected finite numbers"),
        (("--costs", "F=1e308"), "'F=1e.308': expected at most 1e.09 s"),
        (("--costs", "link=1e7"), r"link=1e\+07: expected at most 1,000,000 x the longest"),
        (("--costs", "R=1e7"), r"R=1e\+07: expected at most 1,000,000 x the longest"),
        (("--costs", "BW=1e9"), r"BW=1e\+09: expected at most 1000 x F\+B\+W, 3 s"),
        (("--costs", "F=1e-300,B=0,W=0"), "F takes 1e-300 s.*expected one .* at least 1e-09 s"),
        (("--memory", "0"), "--memory 0 = 0 micro-batches .*: expected at least 1"),
        (("--memory", "0.1"), "--memory 0.1 = 0 micro-batches .*: expected at least 1"),
        (("--memory", "9999999999"), "expected .* at most 1,000,000,000"),
        (("--memory", "-1"), "--memory -1: expected a whole number .*or 2S"),
        (("--memory", "lots"), "--memory lots: expected a whole number .*or 2S"),
        (("--dead", "9.9"), r"--dead 9\.9: no such worker: .* from 0\.0 to 1\.3"),
        (("--dead", "1"), r"--dead 1: no such worker: expected pipeline\.stage"),
        (("--dead", "0.1,0.1"), r"--dead: worker 0\.1 is given twice"),
        (("--dead", "0.1,1.1"), r"--dead: stage 1 has no live holder.*e\.g\. 0\.1 or 1\.1"),
        (("--slow", "0.1"), r"--slow 0\.1: expected worker=speed"),
        (("--slow", "0.1=1.5"), r"--slow 0\.1=1\.5: .* speed from 1e-06 to 1"),
        (("--slow", "0.1=-1"), r"--slow 0\.1=-1: .* speed from 1e-06 to 1"),
        (("--slow", "0.1=0"), r"--slow 0\.1=0: .* belongs in --dead"),
        (("--slow", "0.1=nan"), r"--slow 0\.1=nan: .* speed from"),
        (("--slow", "7.1=0.5"), r"--slow 7\.1: no such worker"),
        (("--slow", "0.1=0.5", "0.1=0.4"), r"--slow: worker 0\.1 is given twice"),
        (("--slow", "0.1=0.5", "--dead", "0.1"), r"worker 0\.1 is in --dead and in --slow"),
        (("--slow-link", "0.1=1"), r"--slow-link 0\.1=1: expected two workers"),
        (("--slow-link", "0.1-0.1=1"), r"--slow-link 0\.1-0\.1=1: expected two workers"),
        (("--slow-link", "0.1-0.2=-1"), "expected two workers and the delay"),
        (("--slow-link", "0.1-0.2=inf"), "expected two workers and the delay"),
        (("--slow-link", "0.1-0.2=1e9"), "0.1-0.2=1e.09: expected at most 1,000,000 x"),
        (("--slow-link", "0.1-0.2=1,0.2-0.1=1"), "this link is given twice"),
        (("--slow-link", "0.1-0.2=1", "--dead", "0.2"), r"0\.2 is in --dead"),
        (("--move-cost", "-1"), "--move-cost -1: expected 0 to"),
        (("--move-cost", "nan"), "--move-cost nan: expected 0 to"),
        (("--horizon", "0"), "--horizon 0: expected 1 to"),
        (("--certify", "soon"), "--certify soon: expected a time .* 30s, 30 or 2m"),
        (("--certify", "0"), "--certify 0: expected a time"),
        (("--microbatches", "6000", "--certify", "5"), "has 72,000 operations: expected at most"),
        (("--microbatches", "100000"), "50000 micro-batches a pipeline x 4 stages: expected"),
        (("--microbatches", "100000", "--schedule", "gpipe"), "to draw; ask for fewer"),
        (("--microbatches", "50000", "--svg", "x.svg"), "--svg x.svg: .* to draw; ask for fewer"),
    ],
)
def test_a_wrong_value_is_one_clear_error(words, message, monkeypatch):
    forbid_planning(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        run(*SMALL, *words)
    assert re.search(message, in_flags(caught.value))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_picture_never_replaces_a_pipe_and_follows_a_link(tmp_path, capsys):
    pipe, link, drawn = tmp_path / "pipe", tmp_path / "link.svg", tmp_path / "drawn.svg"
    os.mkfifo(pipe)
    link.symlink_to(drawn)
    asked = ["plan", "--pipelines", "1", "--stages", "2", "--microbatches", "4", "--svg"]
    assert main.main([*asked, str(pipe)]) == 2
    assert "not a regular file" in capsys.readouterr().err
    assert pipe.is_fifo()
    assert main.main([*asked, str(link)]) == 0
    assert link.is_symlink()
    assert drawn.read_text().startswith("<svg")


@pytest.mark.parametrize(
    "costs",
    ["F=1e-12,BW=0,link=1e6", "F=1e-300,BW=0,R=1", "F=1e-7,BW=0", "F=1,B=1,W=10000000,BW=1"],
)
def test_costs_that_cannot_be_counted_together_are_refused(costs, capsys):
    asked = ["plan", "--pipelines", "2", "--stages", "4", "--microbatches", "8", "--first"]
    assert main.main([*asked, "--costs", costs]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "expected" in error


def test_a_part_that_is_dearer_than_the_whole_does_not_blur_the_period(capsys):
    asked = ["plan", "--pipelines", "2", "--stages", "4", "--microbatches", "8", "--first"]
    assert main.main([*asked, "--costs", "F=1,B=1,W=100000,BW=1"]) == 0
    assert "period          14 s a step" in capsys.readouterr().out


# --- machines ---


@pytest.fixture
def placed(capsys):
    """What is said of machines: in one line, and in a row of words for each."""

    def tell(*words):
        assert run(*words, "--first") == 0
        *_, text = capsys.readouterr().out.split("\n\n")
        said, _, table = text.partition("machine  ")
        head, *rows = table.splitlines()
        assert head.endswith("spare  if it is lost (predicted)")
        return " ".join(said.split()), [re.split(r"\s{2,}", row) for row in rows]

    return tell


def test_workers_are_placed_and_the_loss_of_each_machine_is_told(placed):
    shape = ("--pipelines", "4", "--stages", "2", "--microbatches", "16", "--width", "200")
    said, rows = placed(*shape, "--machines", "a:2,b:2,c:4,d:1")
    assert said == (
        "placed on 4 machines: every stage is on two machines or more; every pipeline is on one "
        "machine; 1 slot is spare"
    )
    assert [row[:4] for row in rows] == [
        ["a", "0.0-0.1", "0-1", "0"],
        ["b", "1.0-1.1", "0-1", "0"],
        ["c", "2.0-2.1, 3.0-3.1", "0-1", "0"],
        ["d", "-", "-", "1"],
    ]
    assert [row[4] for row in rows[1:]] == [
        "18 s a step instead of 12; 18 s with 1.0 started again elsewhere; each stage keeps 3 of 4 "
        "holders",
        "24 s a step instead of 12; 24 s with 2.0 started again elsewhere; each stage keeps 2 of 4 "
        "holders",
        "nothing: it runs no worker",
    ]


def test_equal_machines_have_numbers_for_names(placed):
    _, rows = placed(*SMALL, "--machines", "2")
    assert rows == [
        [name, workers, "0-3", "0", "48 s a step instead of 24; each stage keeps 1 of 2 holders"]
        for name, workers in (("m0", "0.0-0.3"), ("m1", "1.0-1.3"))
    ]


def test_a_machine_whose_loss_ends_the_run_is_told(placed):
    shape = ("--pipelines", "1", "--stages", "2", "--microbatches", "4", "--width", "200")
    _, rows = placed(*shape, "--machines", "2")
    assert [row[4] for row in rows] == [
        f"the run stops: stage {stage} is lost, and room for 1 worker is too little for 2 stages"
        for stage in (0, 1)
    ]
    _, rows = placed(*shape, "--machines", "a:1,b:1,c:1")
    assert rows[1][4] == (
        "stage 1 is lost: rebuilt from a log, or all go back to a checkpoint; 12 s with 0.1 "
        "started again elsewhere"
    )


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        ("0", "--machines 0: expected 1 to 8 for 8 workers, one slot each at least"),
        ("9", "--machines 9: expected 1 to 8 for 8 workers"),
        ("a:4,b:3", "--machines: a has 4 slots, b has 3 slots: room for 7 workers: expected room"),
        ("a:4,a:4", "--machines: a is given twice: expected it once"),
        ("a:4,b", "--machines a:4,b: 'b': expected a number of equal machines, e.g. 4, or names"),
        ("a:4,b:-4", "--machines a:4,b:-4: 'b:-4': expected a number"),
        ("../x:8", "--machines: name '../x': expected a machine's name"),
        ("", "--machines : '': expected a number of equal machines"),
    ],
)
def test_machines_that_cannot_be_are_refused(machines, said):
    with pytest.raises(ConfigError) as raised:
        run(*SMALL, "--machines", machines)
    assert in_flags(raised.value).startswith(said)


def test_only_some_of_many_machines_are_listed(capsys):
    shape = ("--pipelines", "66", "--stages", "1", "--microbatches", "66", "--width", "100")
    assert run(*shape, "--first", "--machines", "66") == 0
    assert capsys.readouterr().out.endswith("\n... and 2 more machines\n")
