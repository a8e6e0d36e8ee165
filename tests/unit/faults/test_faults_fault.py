"""Faults as text: what is understood, what is refused and how it is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.faults.fault import PHASES, Fault, FaultKind, check_faults, parse_fault
from holdfast.faults.lasting import Lasting

KILL, HANG, SLOW, LINK, CPU, JOIN = FaultKind
WORKER, PEER = WorkerId(1, 0), WorkerId(1, 1)

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
last_steps = st.none() | numbers
factors = st.floats(1, 100, exclude_min=True)
stretches = st.builds(Lasting, last_steps, factors)
hindrances = st.one_of(
    st.builds(Lasting, last_steps, st.just(1.0), st.floats(1e-6, 10)),
    st.builds(Lasting, last_steps, st.just(1.0), st.just(0.0), st.floats(1000, 1e15)),
)
links = st.tuples(workers, workers).map(sorted)
faults = st.one_of(
    st.builds(Fault, st.sampled_from([KILL, HANG]), workers, numbers, points),
    st.builds(Fault, st.just(SLOW), workers, numbers, points, speeds),
    st.builds(Fault, st.just(JOIN), st.none() | workers, numbers),
    st.builds(Fault, st.sampled_from([SLOW, CPU]), workers, numbers, lasting=stretches),
    st.builds(
        lambda ends, step, lasting: Fault(LINK, ends[0], step, peer=ends[1], lasting=lasting),
        links,
        numbers,
        hindrances,
    ),
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
        (
            "slow 1.0@3-6 x2",
            Fault(SLOW, WORKER, 2, lasting=Lasting(5, 2.0)),
            "slow 1.0 @ 3-6 x2.0",
        ),
        (
            "slow 1.0 @ 03   x1.10",
            Fault(SLOW, WORKER, 2, lasting=Lasting(None, 1.1)),
            "slow 1.0 @ 3 x1.1",
        ),
        (
            "cpu 1.0 @ 3-3 x2.5",
            Fault(CPU, WORKER, 2, lasting=Lasting(2, 2.5)),
            "cpu 1.0 @ 3-3 x2.5",
        ),
        (
            "link 1.1 - 1.0 @ 3-6 +15ms",
            Fault(LINK, WORKER, 2, peer=PEER, lasting=Lasting(5, delay_s=0.015)),
            "link 1.0-1.1 @ 3-6 +15ms",
        ),
        (
            "link 1.0-1.1 @ 3 +1.5s",
            Fault(LINK, WORKER, 2, peer=PEER, lasting=Lasting(None, delay_s=1.5)),
            "link 1.0-1.1 @ 3 +1500ms",
        ),
        (
            "link 1.0-1.1 @ 3-6 0.5MB/s",
            Fault(LINK, WORKER, 2, peer=PEER, lasting=Lasting(5, bytes_s=5e5)),
            "link 1.0-1.1 @ 3-6 500kB/s",
        ),
        (
            "link 1.0-1.1 @ 3-6 10MB/s",
            Fault(LINK, WORKER, 2, peer=PEER, lasting=Lasting(5, bytes_s=1e7)),
            "link 1.0-1.1 @ 3-6 10MB/s",
        ),
        (
            "link 1.0-1.1 @ 3-6 2GB/s",
            Fault(LINK, WORKER, 2, peer=PEER, lasting=Lasting(5, bytes_s=2e9)),
            "link 1.0-1.1 @ 3-6 2GB/s",
        ),
    ],
)
def test_steps_count_from_one_in_the_text_and_from_zero_inside(text, fault, canonical):
    assert parse_fault(text) == fault
    assert str(fault) == canonical


@pytest.mark.parametrize(
    ("text", "why", "example"),
    [
        ("", "'' is no fault, expected kill, hang, slow, link, cpu, join", "kill 1.0 @ 5"),
        ("@ 5", "'' is no fault, expected kill, hang, slow, link, cpu, join", "kill 1.0 @ 5"),
        ("maim 1.0 @ 5", "'maim' is no fault, expected kill, hang", "kill 1.0 @ 5"),
        ("hang 1.0", "it does not say when: '@' and a step", "hang 1.0 @ 5.B3"),
        ("join", "it does not say when: '@' and a step", "join 1.0 @ 8"),
        ("kill @ 5", "kill needs a worker", "kill 1.0 @ 5"),
        ("kill@5", "kill needs a worker", "kill 1.0 @ 5"),
        ("slow =0.5 @ 5", "slow needs a worker", "slow 1.0 @ 5-8 x2.0"),
        ("kill 1 @ 5", "'1' is no worker, expected pipeline.stage", "kill 1.0 @ 5"),
        ("kill 1.0 0.1 @ 5", "'1.0 0.1' is no worker", "kill 1.0 @ 5"),
        ("join x @ 5", "'x' is no worker", "join 1.0 @ 8"),
        (f"kill {'9' * 5000}.0 @ 5", "9.0' is no worker", "kill 1.0 @ 5"),
        ("kill 1.0=0.5 @ 5", "only slow takes a speed, not kill", "kill 1.0 @ 5"),
        ("join =0.5 @ 5", "only slow takes a speed, not join", "join 1.0 @ 8"),
        ("slow 1.0 @ 5", "how slow: a factor (x2.0) is missing", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5-8", "how slow: a factor (x2.0) is missing", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0= @ 5", "slow needs a speed", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0=half @ 5", "speed 'half' is no number", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0=0.5 @ 5-8", "'5-8' is no step", "slow 1.0 @ 5-8 x2.0"),
        ("slow @ 5 x2.0", "slow needs a worker", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ soon x2.0", "'soon' is no range of steps", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5.F0 x2.0", "'5.F0' is no range of steps", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @", "'' is no range of steps", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5-8-9 x2", "'5-8-9' is no range of steps", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5-8 2.0", "'2.0' is not a factor (x2.0)", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5-8 xinf", "'xinf' is not a factor", "slow 1.0 @ 5-8 x2.0"),
        ("slow 1.0 @ 5-8 +15ms", "'+15ms' is not a factor", "slow 1.0 @ 5-8 x2.0"),
        (f"slow 1.0 @ 5-8 x{'9' * 5000}", "9' is not a factor", "slow 1.0 @ 5-8 x2.0"),
        ("cpu 1.0=0.5 @ 5-8 x2", "only slow takes a speed, not cpu", "cpu 1.0 @ 5-8 x2.0"),
        ("cpu 1.0 @ 5-8", "how slow: a factor (x2.0) is missing", "cpu 1.0 @ 5-8 x2.0"),
        ("link 1.0 @ 5-8 +15ms", "link needs two workers with '-'", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 1.0- @ 5 +15ms", "link needs two workers with '-'", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 1.0-x @ 5 +15ms", "'x' is no worker", "link 0.0-0.1 @ 5-8 +15ms"),
        (
            "link 0.0-0.1 @ 5-8",
            "how slow: a delay (+15ms) or a bandwidth (10MB/s) is missing",
            "link 0.0-0.1 @ 5-8 +15ms",
        ),
        ("link 0.0-0.1 @ 5-8 x2.0", "'x2.0' is not a delay", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 0.0-0.1 @ 5-8 15ms", "'15ms' is not a delay", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 0.0-0.1 @ 5-8 +15", "'+15' is not a delay", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 0.0-0.1 @ 5-8 +0ms", "a delay of 0 delays nothing", "link 0.0-0.1 @ 5-8 +15ms"),
        ("link 0.0-0.1 @ 5-8 10mb/s", "'10mb/s' is not a delay", "link 0.0-0.1 @ 5-8 +15ms"),
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
    assert line.startswith(f"faults={text!r}: ")
    assert why in line.removeprefix(f"faults={text!r}")
    assert line.endswith(f"; write e.g. {example!r}")
    assert len(line.splitlines()) == 1
    parse_fault(example)


@given(st.text(alphabet="killslowhangjoincpu @=.-+x0159FBWdonesMG/\n", max_size=30))
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


def test_a_fault_that_lasts_covers_its_steps_and_waits_nowhere():
    fault = parse_fault("slow 1.0 @ 3-5 x2.0")
    assert [step for step in range(8) if fault.covers(step)] == [2, 3, 4]
    for_good = parse_fault("slow 1.0 @ 3 x2.0")
    assert [step for step in range(8) if for_good.covers(step)] == [2, 3, 4, 5, 6, 7]
    assert not any(parse_fault("slow 1.0=0.5 @ 3").covers(step) for step in range(8))


def test_a_link_concerns_both_of_its_ends_and_others_their_worker_only():
    link, slow, join = map(parse_fault, ["link 1.1-1.0 @ 3 +1ms", "slow 1.0 @ 3 x2.0", "join @ 3"])
    assert [link.concerns(w) for w in (WORKER, PEER, WorkerId(0, 0))] == [True, True, False]
    assert [slow.concerns(w) for w in (WORKER, PEER)] == [True, False]
    assert not join.concerns(WORKER)


# --- checks against the run ---


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            ["kill 2.0 @ 5"],
            "faults='kill 2.0 @ 5': there is no worker 2.0; expected pipeline.stage from 0.0 to "
            "1.2 (2 pipelines x 3 stages)",
        ),
        (["join 0.3 @ 5"], "faults='join 0.3 @ 5': there is no worker 0.3; expected "),
        (
            ["hang 1.0 @ 21.F0"],
            "faults='hang 1.0 @ 21.F0': there is no step 21; expected 1 to 20, the steps of this",
        ),
        (["join @ 0"], "faults='join @ 0': there is no step 0; expected 1 to 20"),
        (["kill 1.0 @ -3"], "faults='kill 1.0 @ -3': there is no step -3; expected 1 to 20"),
        (["slow 1.0=0 @ 3"], "faults='slow 1.0=0.0 @ 3': speed 0.0; expected above 0 and at "),
        (["slow 1.0=1.5 @ 3"], "faults='slow 1.0=1.5 @ 3': speed 1.5; expected above 0 and at"),
        (["slow 1.0=nan @ 3"], "faults='slow 1.0=nan @ 3': speed nan; expected above 0 and at"),
        (
            ["join @ 8", "kill 1.0 @ 5.begin", "kill 1.0 @ 5"],
            "faults='kill 1.0 @ 5': it is given twice; leave out one",
        ),
        (["join @ 8", "join @ 8"], "faults='join @ 8': it is given twice"),
        (
            ["slow 1.0=0.5 @ 5", "slow 1.0=0.25 @ 5"],
            "faults='slow 1.0=0.25 @ 5': 'slow 1.0=0.5 @ 5' is given for the same place",
        ),
        (["slow 2.0 @ 5-8 x2"], "faults='slow 2.0 @ 5-8 x2.0': there is no worker 2.0; expected"),
        (["slow 1.0 @ 0-8 x2"], "faults='slow 1.0 @ 0-8 x2.0': there is no step 0; expected 1 to"),
        (["slow 1.0 @ 5-21 x2"], "faults='slow 1.0 @ 5-21 x2.0': there is no step 21; expected 1"),
        (
            ["slow 1.0 @ 8-5 x2"],
            "faults='slow 1.0 @ 8-5 x2.0': it ends before it begins; expected FIRST-LAST",
        ),
        (
            ["slow 1.0 @ 5-8 x1.0"],
            "faults='slow 1.0 @ 5-8 x1.0': factor 1.0; expected above 1 and at most 100 (2.0: it",
        ),
        (
            ["slow 1.0 @ 5 x101"],
            "faults='slow 1.0 @ 5 x101.0': factor 101.0; expected above 1 and",
        ),
        (["cpu 1.0 @ 5 x11"], "faults='cpu 1.0 @ 5 x11.0': factor 11.0; expected above 1 and at"),
        (
            ["slow 1.0 @ 5-8 x2.0", "slow 1.0 @ 5-8 x2"],
            "faults='slow 1.0 @ 5-8 x2.0': it is given twice; leave out one",
        ),
        (["link 0.1-2.0 @ 5 +1ms"], "faults='link 0.1-2.0 @ 5 +1ms': there is no worker 2.0; "),
        (["link 0.1-0.1 @ 5 +1ms"], "faults='link 0.1-0.1 @ 5 +1ms': a link has two ends; "),
        (["link 0.0-0.1 @ 5 +11s"], "faults='link 0.0-0.1 @ 5 +11000ms': expected a delay of at "),
        (["link 0.0-0.1 @ 5 .9kB/s"], "faults='link 0.0-0.1 @ 5 0.9kB/s': expected a bandwidth "),
        (
            ["link 0.0-0.1 @ 8-9 1MB/s", "link 0.1-0.0 @ 5-8 +1ms"],
            "faults='link 0.0-0.1 @ 8-9 1MB/s': 'link 0.0-0.1 @ 5-8 +1ms' is not over by then; ",
        ),
        (
            ["cpu 1.0 @ 5 x2", "cpu 1.0 @ 9-9 x3"],
            "faults='cpu 1.0 @ 9-9 x3.0': 'cpu 1.0 @ 5 x2.0'",
        ),
    ],
)
def test_a_fault_that_cannot_happen_in_this_run_is_refused(texts, line):
    with pytest.raises(ConfigError) as caught:
        check_faults([parse_fault(text) for text in texts], 2, 3, 20)
    assert str(caught.value).startswith(line)
    assert len(str(caught.value).splitlines()) == 1


def test_faults_at_the_boundaries_of_the_run_are_accepted():
    texts = ["kill 0.0 @ 1", "kill 1.2 @ 20.settled", "slow 1.0=1 @ 3", "join @ 20", "join 0.0 @ 2"]
    texts += ["hang 0.0 @ 1", "kill 0.0 @ 1.F0", "kill 0.0 @ 2", "kill 0.1 @ 1"]  # no duplicates
    check_faults([parse_fault(text) for text in texts], 2, 3, 20)


def test_slowness_that_adds_up_and_links_that_take_turns_are_accepted():
    texts = ["slow 1.0 @ 5-8 x2", "slow 1.0 @ 5-9 x2", "slow 1.0 @ 6 x1.1", "slow 1.0=0.5 @ 5"]
    texts += ["cpu 1.0 @ 5-8 x10", "cpu 1.0 @ 9-20 x2", "cpu 1.1 @ 5-8 x2"]
    texts += ["link 0.0-0.1 @ 9 1kB/s", "link 0.0-0.1 @ 1-8 +10s", "link 0.0-1.0 @ 1-20 +1ms"]
    check_faults([parse_fault(text) for text in texts], 2, 3, 20)


def test_a_fault_before_the_checkpoint_that_is_resumed_is_refused():
    check_faults([parse_fault("kill 1.0 @ 11")], 2, 3, 20, first_step=10)
    with pytest.raises(ConfigError, match="there is no step 10; expected 11 to 20"):
        check_faults([parse_fault("kill 1.0 @ 10")], 2, 3, 20, first_step=10)
