"""Faults as text: what is understood, what is refused and how it is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.faults.fault import PHASES, Fault, FaultKind, check_faults, parse_fault

KILL, HANG, SLOW, JOIN = FaultKind
WORKER = WorkerId(1, 0)

numbers = st.integers(0, 999_999)
workers = st.builds(WorkerId, numbers, numbers)
operations = st.builds(
    lambda kind, number, done: f"{kind}{number}{done}",
    st.sampled_from("FBW"),
    numbers,
    st.sampled_from(["", ".done"]),
)
points = st.sampled_from(list(PHASES)) | operations
speeds = st.floats(0, 1, exclude_min=True)
faults = st.one_of(
    st.builds(Fault, st.sampled_from([KILL, HANG]), workers, numbers, points),
    st.builds(Fault, st.just(SLOW), workers, numbers, points, speeds),
    st.builds(Fault, st.just(JOIN), st.none() | workers, numbers),
)


# --- the text form ---


@given(faults)
def test_a_fault_prints_as_a_text_that_parses_back(fault):
    assert parse_fault(str(fault)) == fault


@given(faults, st.data())
def test_blanks_around_the_words_do_not_matter(fault, data):
    blanks = st.sampled_from(["", " ", "\t "])
    text = str(fault).replace(" @ ", f"{data.draw(blanks)}@{data.draw(blanks)}")
    text = text.replace("=", f"{data.draw(blanks)}={data.draw(blanks)}")
    assert parse_fault(f"{data.draw(blanks)}{text}{data.draw(blanks)}") == fault


@pytest.mark.parametrize(
    ("text", "fault", "canonical"),
    [
        ("kill 1.0 @ 5", Fault(KILL, WORKER, 4), "kill 1.0 @ 5"),
        ("kill 1.0 @ 5.begin", Fault(KILL, WORKER, 4, "begin"), "kill 1.0 @ 5"),
        ("hang 1.0@5.B3", Fault(HANG, WORKER, 4, "B3"), "hang 1.0 @ 5.B3"),
        ("kill 1.0 @ 05.B03.done", Fault(KILL, WORKER, 4, "B3.done"), "kill 1.0 @ 5.B3.done"),
        ("kill 1.0 @ 1.half", Fault(KILL, WORKER, 0, "half"), "kill 1.0 @ 1.half"),
        ("slow 1.0=.5 @ 5.W1", Fault(SLOW, WORKER, 4, "W1", 0.5), "slow 1.0=0.5 @ 5.W1"),
        ("join @ 8", Fault(JOIN, None, 7), "join @ 8"),
        ("join 1.0 @ 8", Fault(JOIN, WORKER, 7), "join 1.0 @ 8"),
    ],
)
def test_steps_count_from_one_in_the_text_and_from_zero_inside(text, fault, canonical):
    assert parse_fault(text) == fault
    assert str(fault) == canonical


@pytest.mark.parametrize(
    ("text", "why", "example"),
    [
        ("", "'' is no fault, expected kill, hang, slow, join", "kill 1.0 @ 5"),
        ("@ 5", "'' is no fault, expected kill, hang, slow, join", "kill 1.0 @ 5"),
        ("maim 1.0 @ 5", "'maim' is no fault, expected kill, hang", "kill 1.0 @ 5"),
        ("hang 1.0", "it does not say when: '@' and a step", "hang 1.0 @ 5.B3"),
        ("join", "it does not say when: '@' and a step", "join 1.0 @ 8"),
        ("kill @ 5", "kill needs a worker", "kill 1.0 @ 5"),
        ("kill@5", "kill needs a worker", "kill 1.0 @ 5"),
        ("slow =0.5 @ 5", "slow needs a worker", "slow 1.0=0.5 @ 5"),
        ("kill 1 @ 5", "'1' is no worker, expected pipeline.stage", "kill 1.0 @ 5"),
        ("kill 1.0 0.1 @ 5", "'1.0 0.1' is no worker", "kill 1.0 @ 5"),
        ("join x @ 5", "'x' is no worker", "join 1.0 @ 8"),
        (f"kill {'9' * 5000}.0 @ 5", "9.0' is no worker", "kill 1.0 @ 5"),
        ("kill 1.0=0.5 @ 5", "only slow takes a speed, not kill", "kill 1.0 @ 5"),
        ("join =0.5 @ 5", "only slow takes a speed, not join", "join 1.0 @ 8"),
        ("slow 1.0 @ 5", "slow needs a speed", "slow 1.0=0.5 @ 5"),
        ("slow 1.0= @ 5", "slow needs a speed", "slow 1.0=0.5 @ 5"),
        ("slow 1.0=half @ 5", "speed 'half' is no number", "slow 1.0=0.5 @ 5"),
        ("kill 1.0 @", "'' is no step, expected a number counted from 1", "kill 1.0 @ 5"),
        ("kill 1.0 @ soon", "'soon' is no step", "kill 1.0 @ 5"),
        (f"kill 1.0 @ {'9' * 5000}", "9' is no step", "kill 1.0 @ 5"),
        ("kill 1.0 @ 5 @ 6", "'5 @ 6' is no step", "kill 1.0 @ 5"),
        ("kill 1.0 @ 5.", "'' is no point", "kill 1.0 @ 5"),
        ("kill 1.0 @ 5.Q3", "'Q3' is no point, expected an operation (F0,", "kill 1.0 @ 5"),
        ("kill 1.0 @ 5.BW3", "'BW3' is no point", "kill 1.0 @ 5"),
        ("kill 1.0 @ 5.R", "one of begin, reduce, partials, reduced, told, ", "kill 1.0 @ 5"),
        ("hang 1.0 @ 5.half.done", "'half.done' is no point", "hang 1.0 @ 5.B3"),
        ("join @ 5.F0", "join takes a step only, not a point ('F0')", "join 1.0 @ 8"),
        ("kill 1.0 @ 5\n6", r"'5\n6' is no step", "kill 1.0 @ 5"),
    ],
)
def test_a_text_that_is_no_fault_is_refused_in_one_line_with_an_example(text, why, example):
    with pytest.raises(ConfigError) as caught:
        parse_fault(text)
    line = str(caught.value)
    assert line.startswith(f"--fault {text!r}: ")
    assert why in line.removeprefix(f"--fault {text!r}")
    assert line.endswith(f"; write e.g. {example!r}")
    assert len(line.splitlines()) == 1
    parse_fault(example)


@given(st.text(alphabet="killslowhangjoin @=.0159FBWdone\n", max_size=30))
def test_any_text_is_either_a_fault_or_refused(text):
    try:
        fault = parse_fault(text)
    except ConfigError:
        return
    assert parse_fault(str(fault)) == fault or fault.speed != fault.speed


def test_only_a_join_goes_without_a_worker():
    with pytest.raises(ValueError, match="kill needs a worker"):
        Fault(KILL, None, 3)


# --- where it waits ---


@pytest.mark.parametrize("point", ["begin", "half", "F0", "B3.done", "save"])
def test_a_fault_waits_at_its_point_of_its_step_only(point):
    fault = Fault(KILL, WORKER, 4, point)
    assert [step for step in range(8) if fault.waits_at(step, point)] == [4]
    assert not fault.waits_at(4, "told")


@pytest.mark.parametrize("point", ["halt", "proceed", "copy"])
def test_points_that_may_come_in_any_step_count_from_their_step_on(point):
    fault = Fault(KILL, WORKER, 4, point)
    assert [step for step in range(8) if fault.waits_at(step, point)] == [4, 5, 6, 7]
    assert not fault.waits_at(4, "begin")


# --- checks against the run ---


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            ["kill 2.0 @ 5"],
            "--fault 'kill 2.0 @ 5': there is no worker 2.0; expected pipeline.stage from 0.0 to "
            "1.2 (2 pipelines x 3 stages)",
        ),
        (["join 0.3 @ 5"], "--fault 'join 0.3 @ 5': there is no worker 0.3; expected "),
        (
            ["hang 1.0 @ 21.F0"],
            "--fault 'hang 1.0 @ 21.F0': there is no step 21; expected 1 to 20, the steps of this",
        ),
        (["join @ 0"], "--fault 'join @ 0': there is no step 0; expected 1 to 20"),
        (["kill 1.0 @ -3"], "--fault 'kill 1.0 @ -3': there is no step -3; expected 1 to 20"),
        (["slow 1.0=0 @ 3"], "--fault 'slow 1.0=0.0 @ 3': speed 0.0; expected above 0 and at "),
        (["slow 1.0=1.5 @ 3"], "--fault 'slow 1.0=1.5 @ 3': speed 1.5; expected above 0 and at"),
        (["slow 1.0=nan @ 3"], "--fault 'slow 1.0=nan @ 3': speed nan; expected above 0 and at"),
        (
            ["join @ 8", "kill 1.0 @ 5.begin", "kill 1.0 @ 5"],
            "--fault 'kill 1.0 @ 5': it is given twice; leave out one",
        ),
        (["join @ 8", "join @ 8"], "--fault 'join @ 8': it is given twice"),
        (
            ["slow 1.0=0.5 @ 5", "slow 1.0=0.25 @ 5"],
            "--fault 'slow 1.0=0.25 @ 5': 'slow 1.0=0.5 @ 5' is given for the same place",
        ),
    ],
)
def test_a_fault_that_cannot_happen_in_this_run_is_refused(texts, line):
    with pytest.raises(ConfigError) as caught:
        check_faults([parse_fault(text) for text in texts], 2, 3, 20)
    assert str(caught.value).startswith(line)
    assert len(str(caught.value).splitlines()) == 1


def test_faults_at_the_borders_of_the_run_are_accepted():
    texts = ["kill 0.0 @ 1", "kill 1.2 @ 20.settled", "slow 1.0=1 @ 3", "join @ 20", "join 0.0 @ 2"]
    texts += ["hang 0.0 @ 1", "kill 0.0 @ 1.F0", "kill 0.0 @ 2", "kill 0.1 @ 1"]  # no duplicates
    check_faults([parse_fault(text) for text in texts], 2, 3, 20)


def test_a_fault_before_the_checkpoint_that_is_resumed_is_refused():
    check_faults([parse_fault("kill 1.0 @ 11")], 2, 3, 20, first_step=10)
    with pytest.raises(ConfigError, match="there is no step 10; expected 11 to 20"):
        check_faults([parse_fault("kill 1.0 @ 10")], 2, 3, 20, first_step=10)
