"""What the detection bench makes of a run's records, and a small sample of it. No timing."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.sample_events import sample
from holdfast.faults.fault import check_faults, parse_fault
from holdfast.observability.events import Diagnosed, SlownessOver

BENCH = Path(__file__).parents[2] / "bench"
WORKER, LINK = "slow 1.0 @ 21-40 x1.5", "link 0.0-0.1 @ 21-40 +10ms"
OP_MS = 4.0


def case(*faults: str, kind: str = "mixed") -> Any:
    from detect_runs import Case

    return Case(kind, "2x2", 0, faults, OP_MS)


def told(subject: str, step: int, until: float = math.inf, cause: str = "slow computation") -> Any:
    from detect_runs import Named

    return Named(subject, cause, step, until)


def verdict(faults: tuple[str, ...], *named: Any, kind: str = "mixed", error: str = "") -> Any:
    from detect_runs import Ran, judge

    return judge(case(*faults, kind=kind), Ran(named, error=error))


def clear_steps(*faults: str) -> dict[str, int | None]:
    return {stretch.subject: stretch.clear for stretch in case(*faults).slow}


def diagnosed(step: int, cause: str = "slow computation", subject: str = "1.0") -> Diagnosed:
    return sample(Diagnosed, step=step, cause=cause, subject=subject, since=step)


# --- what must be told ---


def test_a_fault_must_be_told_from_its_first_step_if_it_is_large_and_long() -> None:
    assert clear_steps(WORKER, LINK) == {"1.0": 20, "0.0-0.1": 20}


@pytest.mark.parametrize(
    "fault",
    [
        "slow 1.0 @ 21-40 x1.14",
        "slow 1.0 @ 21-27 x2.0",
        "link 0.0-0.1 @ 21-40 +1.9ms",
        "link 0.0-0.1 @ 21-27 +10ms",
    ],
)
def test_a_fault_that_is_too_small_or_too_short_only_may_be_told(fault: str) -> None:
    assert list(clear_steps(fault).values()) == [None]


def test_a_ladder_must_be_told_from_the_step_at_which_its_drops_add_up() -> None:
    assert clear_steps("slow 1.0 @ 21 x1.08", "slow 1.0 @ 31 x1.08") == {"1.0": 30}


def test_single_slow_steps_are_healthy() -> None:
    assert clear_steps("slow 1.0 @ 21-21 x1.25", "slow 1.0 @ 23-23 x1.25") == {}


def test_each_kind_of_case_holds_what_it_is_about_and_can_be_injected() -> None:
    from detect_runs import IN_TURN, MIXES, STEPS, case_of

    cases = [case_of(number, OP_MS) for number in range(10 * len(IN_TURN))]
    assert {one.kind for one in cases} == set(MIXES)
    for one in cases:
        must = {stretch.subject for stretch in one.slow if stretch.clear is not None}
        least, most = {"quiet": (0, 0), "dips": (0, 0), "compound": (2, 99)}.get(one.kind, (1, 99))
        assert least <= len(must) <= most, one
        assert bool(one.faults) == (one.kind != "quiet")
        pipelines, stages = map(int, one.layout.split("x"))
        check_faults([parse_fault(text) for text in one.faults], pipelines, stages, STEPS)


def test_no_two_cases_share_a_seed_and_none_is_for_tuning() -> None:
    from detect_runs import NUM_RUNS, TEST_SEED, TUNING_SEED, case_of

    seeds = [case_of(number, OP_MS).seed for number in range(NUM_RUNS)]
    assert len(set(seeds)) == len(seeds)
    assert TEST_SEED <= min(seeds) <= max(seeds) < TUNING_SEED
    assert case_of(3, OP_MS, TUNING_SEED).seed >= TUNING_SEED


# --- what a run told ---


def test_a_name_stands_until_it_is_over_and_being_told_again_is_no_new_one() -> None:
    from detect_runs import names

    over = SlownessOver(at_s=9.0, step=9, cause="slow computation", subject="1.0", since=8)
    found = names([diagnosed(5), diagnosed(7), over, diagnosed(12)])
    assert found == (told("1.0", 5, until=9), told("1.0", 12))


def test_imbalance_accuses_nobody() -> None:
    from detect_runs import names

    assert names([diagnosed(5, "imbalance of the model", "stage 1")]) == ()


# --- what is right ---


def test_a_run_is_right_if_all_slow_ones_are_named_and_nobody_else() -> None:
    found = verdict((WORKER, LINK), told("1.0", 23, 45), told("0.0-0.1", 20, 60, "slow link"))
    assert found.is_right
    assert sorted(found.delays) == [1, 4]
    assert sorted(found.reliefs) == [False, True]


def test_a_wrong_name_beside_the_right_one_makes_the_run_wrong() -> None:
    found = verdict((WORKER,), told("1.0", 23), told("0.0", 24))
    assert not found.is_right
    assert [name.subject for name in found.wrong] == ["0.0"]
    assert found.missed == ()


@pytest.mark.parametrize("subject", ["0.0", "0.1", "this machine"])
def test_a_slow_link_named_as_somebody_else_is_missed_and_wrong(subject: str) -> None:
    found = verdict((LINK,), told(subject, 23))
    assert [stretch.subject for stretch in found.missed] == ["0.0-0.1"]
    assert [name.subject for name in found.wrong] == [subject]


@pytest.mark.parametrize("step", [19, 45])
def test_a_name_told_before_the_fault_or_long_after_it_is_wrong_and_finds_nothing(
    step: int,
) -> None:
    found = verdict((WORKER,), told("1.0", step))
    assert found.wrong
    assert found.missed


def test_a_name_told_just_after_the_fault_still_counts() -> None:
    assert verdict((WORKER,), told("1.0", 44)).is_right


def test_a_name_that_still_stands_counts_for_the_next_fault_and_one_that_is_over_does_not() -> None:
    faults = ("slow 1.0 @ 21-30 x1.5", "slow 1.0 @ 33-50 x1.5")
    assert verdict(faults, told("1.0", 24)).missed == ()
    assert [s.begin for s in verdict(faults, told("1.0", 24, until=31)).missed] == [32]


def test_who_may_be_told_is_neither_missed_nor_wrong() -> None:
    burst = "slow 0.1 @ 21-23 x2.0"
    assert verdict((WORKER, burst), told("1.0", 23)).is_right
    assert verdict((WORKER, burst), told("1.0", 23), told("0.1", 23)).is_right


def test_who_is_slow_in_every_other_step_may_be_told_and_after_two_such_steps_not() -> None:
    dips = tuple(f"slow 0.1 @ {step} x1.25" for step in ("51-51", "53-53", "55-55"))
    assert verdict((WORKER, *dips), told("1.0", 23), told("0.1", 55)).is_right
    assert verdict((WORKER, *dips[:2]), told("1.0", 23), told("0.1", 55)).wrong


def test_rates_are_of_the_runs_that_they_are_about() -> None:
    from detect_runs import figures

    found = figures(
        [
            verdict((), kind="quiet"),
            verdict((), told("this machine", 9, cause="slow machine"), kind="quiet"),
            verdict((WORKER,), told("1.0", 23)),
            verdict((WORKER,)),
            verdict((WORKER,), told("1.0", 25), told("0.0", 23)),
            verdict((WORKER,), error="it hung"),
        ]
    )
    assert found["accuracy"] == round(2 / 6, 5)
    assert found["false_positive_rate"] == 0.5
    assert found["false_negative_rate"] == round(1 / 3, 5)
    assert found["localised"] == 0.25
    assert (found["failed"], found["slow_machine_told"]) == (1, 1)
    assert found["median_steps"] == 5


# --- runs side by side ---


STUB = """
import os, time
import detect_runs

def serve(pipe, place):
    detect_runs.run_case = run_case
    detect_runs.serve(pipe, place)

def run_case(case, place):
    if case.kind == "dies":
        os._exit(3)
    if case.kind == "hangs":
        time.sleep(600)
    if case.kind == "fails":
        raise ValueError("no such thing")
    return detect_runs.Ran(late=float(case.seed))
"""


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Of runs that are only acted, by the place of each."""
    (tmp_path / "detect_stub.py").write_text(STUB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "detect_stub", raising=False)

    def outcomes(*kinds: str) -> list[Any]:
        import detect_stub  # type: ignore[import-not-found]

        from detect_runs import Case, run_all

        cases = [Case(kind, "2x2", at, (), OP_MS) for at, kind in enumerate(kinds)]
        found = {one.seed: ran for one, ran in run_all(cases, 1, detect_stub.serve)}
        return [found[at] for at in range(len(kinds))]

    return outcomes


def test_a_run_that_fails_or_dies_is_told_and_the_others_go_on(outcomes: Any) -> None:
    found = outcomes("well", "dies", "fails", "well")
    errors = [ran.error for ran in found]
    assert errors == ["", "its process died", "ValueError: no such thing", ""]
    assert found[3].late == 3.0


def test_a_run_that_hangs_is_ended_and_told(outcomes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detect_runs.LIMIT_S", 1.0)
    assert [ran.error for ran in outcomes("hangs")] == ["not over after 1 s"]


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(600)
def test_the_detection_bench_runs_real_runs_and_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "detect.py"), "--section", "runs", "--quick"],
        capture_output=True,
        text=True,
        timeout=580,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["num_runs"] == 6
    runs = found["runs"]
    assert (runs["failed"], runs["runs_with_faults"], runs["emulated"]) == (0, 4, True)
    assert found["localised"] == runs["localised"]
    assert 0 <= runs["accuracy"] <= 1
    assert "emulated devices, threads" in done.stdout
    assert "Load average" in done.stdout
