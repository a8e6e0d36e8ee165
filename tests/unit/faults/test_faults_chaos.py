"""Random faults: the same for the same seed, and never more than a run can bear."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.faults.chaos import Chaos, chaos_faults, parse_chaos
from holdfast.faults.fault import PHASES, FaultKind, check_faults
from holdfast.faults.slowdowns import slowdowns

STEP_PHASES = list(PHASES)[:10]
GOLDEN = [
    "kill 0.0 @ 3.check",
    "join 0.0 @ 5",
    "kill 1.1 @ 5.told",
    "join 1.1 @ 7",
    "kill 1.0 @ 7.B2.done",
    "join 1.0 @ 10",
]


@st.composite
def runs(draw):
    chaos = Chaos(draw(st.integers(0, 2**63 - 1)), draw(st.sampled_from([0.01, 0.2, 0.6, 1.0])))
    first_step = draw(st.integers(0, 5))
    shape = {name: draw(st.integers(1, 4)) for name in ("pipelines", "stages")}
    steps = first_step + draw(st.integers(1, 15))
    return chaos, shape | {"steps": steps}, first_step


def kills_and_joins(faults):
    assert all(fault.kind in (FaultKind.KILL, FaultKind.JOIN) for fault in faults)
    kills = [fault for fault in faults if fault.kind is FaultKind.KILL]
    return kills, [fault for fault in faults if fault.kind is FaultKind.JOIN]


# --- the flag ---


@pytest.mark.parametrize(
    ("text", "chaos"),
    [
        ("seed=7,slow=0.01", Chaos(7, slow=0.01)),
        ("slow=1,seed=7,rate=0.05", Chaos(7, 0.05, 1.0)),
    ],
)
def test_slowness_goes_alone_or_with_deaths(text, chaos):
    assert parse_chaos(text) == chaos


@pytest.mark.parametrize("text", ["seed=7,rate=0.05", " rate = 0.05 , seed = 7 "])
def test_seed_and_rate_are_read_in_any_order(text):
    assert parse_chaos(text) == Chaos(7, 0.05)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot read ''"),
        ("seed=1", "lacks rate (of deaths) or slow (of slowness)"),
        ("seed=1,slow=2", "slow 2 is no probability above 0 and at most 1"),
        ("seed=1,slow=x", "slow 'x' is no number"),
        ("slow=0.1", "lacks seed"),
        ("rate=1", "lacks seed"),
        ("seed=1,rate=0.1,", "cannot read ''"),
        ("seed=1,ratio=0.1", "cannot read 'ratio=0.1'"),
        ("seed=1,rate", "cannot read 'rate'"),
        ("seed=1,rate=0.1,seed=2", "seed is given twice"),
        ("seed=-1,rate=0.1", "seed '-1' is no whole number in 0 .. 2^63-1"),
        ("seed=1.5,rate=0.1", "seed '1.5' is no whole number"),
        ("seed=,rate=0.1", "seed '' is no whole number"),
        ("seed=²,rate=0.1", "seed '²' is no whole number"),
        (f"seed={2**63},rate=0.1", f"seed '{2**63}' is no whole number"),
        (f"seed={'9' * 5000},rate=0.1", "9' is no whole number"),
        ("seed=1,rate=often", "rate 'often' is no number"),
        ("seed=1,rate=0", "rate 0 is no probability above 0 and at most 1"),
        ("seed=1,rate=1.1", "rate 1.1 is no probability"),
        ("seed=1,rate=nan", "rate nan is no probability"),
    ],
)
def test_a_bad_chaos_is_refused_in_one_line_with_an_example(text, why):
    with pytest.raises(ConfigError) as caught:
        parse_chaos(text)
    line = str(caught.value)
    assert line.startswith(f"chaos={text!r}: ")
    assert why in line
    assert line.endswith("; write e.g. seed=1,rate=0.05")


# --- the same every time ---


def test_a_seed_gives_these_faults_on_every_machine():
    faults = chaos_faults(Chaos(1, 0.1), 2, 2, 12, operations=4)
    assert [str(fault) for fault in faults] == GOLDEN


def test_another_process_with_another_order_of_sets_finds_the_same_faults():
    code = (
        "from holdfast.faults.chaos import *\n"
        "print([str(f) for f in chaos_faults(Chaos(3, 0.2), 3, 2, 40, operations=4)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    ours = [str(f) for f in chaos_faults(Chaos(3, 0.2), 3, 2, 40, operations=4)]
    assert found == {str(ours)}


def test_another_seed_gives_other_faults():
    assert len({chaos_faults(Chaos(seed, 0.2), 2, 2, 40) for seed in range(50)}) == 50


def test_slowness_comes_after_the_deaths_and_does_not_change_them():
    deaths = chaos_faults(Chaos(3, 0.2), 2, 2, 60)
    slow = chaos_faults(Chaos(3, slow=0.2), 2, 2, 60)
    assert chaos_faults(Chaos(3, 0.2, 0.2), 2, 2, 60) == (*deaths, *slow)
    assert deaths
    assert slow == slowdowns(3, 2, 2, 60, 60.0, rate=0.2)


# --- its bookkeeping ---


@settings(max_examples=200)
@given(runs())
def test_every_kill_is_followed_by_a_join_of_the_same_worker_one_to_three_steps_later(run):
    chaos, shape, first_step = run
    kills, joins = kills_and_joins(chaos_faults(chaos, **shape, first_step=first_step))
    assert len(kills) == len(joins)
    for kill, join in zip(kills, joins, strict=True):
        assert join.worker == kill.worker
        assert 1 <= join.step - kill.step <= 3


@settings(max_examples=200)
@given(runs())
def test_every_stage_keeps_a_holder_and_nobody_is_killed_while_away(run):
    chaos, shape, first_step = run
    kills, joins = kills_and_joins(chaos_faults(chaos, **shape, first_step=first_step))
    for step in range(shape["steps"]):
        away = Counter(
            kill.worker
            for kill, join in zip(kills, joins, strict=True)
            if kill.step <= step <= join.step
        )
        assert set(away.values()) <= {1}
        for stage in range(shape["stages"]):
            holders = {WorkerId(d, stage) for d in range(shape["pipelines"])}
            assert holders - away.keys()


@settings(max_examples=200)
@given(runs())
def test_the_faults_pass_the_checks_of_a_run(run):
    chaos, shape, first_step = run
    check_faults(
        chaos_faults(chaos, **shape, first_step=first_step), **shape, first_step=first_step
    )


def test_a_lone_pipeline_is_left_in_peace():
    assert chaos_faults(Chaos(1, 1.0), 1, 4, 50) == ()


def test_the_rate_is_the_share_of_workers_and_steps_that_are_hit():
    kills, _ = kills_and_joins(chaos_faults(Chaos(5, 0.01), 8, 4, 1001))
    assert 250 < len(kills) < 390  # 320 expected, 18 standard deviation; the seed is fixed


def test_kills_come_at_every_phase_of_a_step_and_at_every_operation():
    kills, joins = kills_and_joins(chaos_faults(Chaos(2, 0.2), 8, 4, 300, operations=2))
    expected = {f"{kind}{n}{done}" for kind in "FBW" for n in range(2) for done in ("", ".done")}
    assert {kill.point for kill in kills} == {*STEP_PHASES, *expected}
    assert STEP_PHASES[-1] == "settled"
    assert {join.step - kill.step for kill, join in zip(kills, joins, strict=True)} == {1, 2, 3}
