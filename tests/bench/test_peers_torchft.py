"""What the torchft bench makes of a run's records. Nothing here needs torchft or starts a run."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.sample_events import sample
from holdfast.observability.events import Event, Recovered, StepFinished, encode_event

BENCH = Path(__file__).parents[2] / "bench" / "peers_torchft.py"
SIGNAL_S = 10.0


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("peers_torchft", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finished(step: int, at_s: float) -> StepFinished:
    return StepFinished(at_s=at_s, step=step, loss=1.0, gradient_norm=1.0, tokens=512, took_s=0.1)


def recovered(step: int, resumed_s: float, cause: str = "death") -> Recovered:
    return sample(
        Recovered,
        at_s=resumed_s + 0.01,
        step=step,
        cause=cause,
        fault_s=SIGNAL_S,
        resumed_s=resumed_s,
        num_lost=int(cause == "death"),
    )


def written(folder: Path, events: list[Event]) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(encode_event(event) + "\n" for event in events) + '{"event": "Ste')
    return path


def outcome(bench: Any, path: Path) -> Any:
    return bench.judge(bench.holdfast_ends(bench.read_lines(path), SIGNAL_S), SIGNAL_S)


def iteration(at_s: float, participants: int, committed: bool = True) -> dict[str, Any]:
    tokens = 256 * participants
    return {"at_s": at_s, "participants": participants, "committed": committed, "tokens": tokens}


def test_holdfast_trains_on_with_the_first_step_that_ends_after_the_recovery(
    bench: Any, tmp_path: Path
) -> None:
    before = [finished(step, 9.0 + step / 10) for step in range(10)]
    reported_late = finished(10, 10.02)
    after = [finished(11 + number, 10.5 + number / 5) for number in range(bench.ALONE_STEPS)]
    events = [*before, reported_late, recovered(11, 10.2), *after]
    found = outcome(bench, written(tmp_path, events))
    assert found.resume_s == pytest.approx(0.5)
    assert found.step_s == pytest.approx(0.2)
    assert found.less_a_step_s == pytest.approx(0.3)
    assert found.steps_lost == 0
    assert found.batch_kept == 1.0


def test_a_step_from_before_the_recovery_is_not_the_first_one_alone_however_late_it_is_reported(
    bench: Any, tmp_path: Path
) -> None:
    late = [finished(9, 9.9), recovered(11, 10.2), finished(10, 10.21)]
    after = [finished(11 + number, 10.5 + number / 5) for number in range(bench.ALONE_STEPS)]
    assert outcome(bench, written(tmp_path, [*late, *after])).resume_s == pytest.approx(0.5)


def test_steps_that_holdfast_finishes_twice_are_lost_steps(bench: Any, tmp_path: Path) -> None:
    before = [finished(step, 9.0 + step / 10) for step in range(10)]
    again = [finished(7 + number, 10.5 + number / 5) for number in range(bench.ALONE_STEPS)]
    found = outcome(bench, written(tmp_path, [*before, recovered(7, 10.2), *again]))
    assert found.steps_lost == 3


@pytest.mark.parametrize("cause", ["join", "better plan"])
def test_a_change_without_a_death_is_no_recovery(bench: Any, tmp_path: Path, cause: str) -> None:
    after = [finished(number, 10.5 + number / 5) for number in range(bench.ALONE_STEPS)]
    events = [finished(0, 9.0), recovered(0, 10.2, cause), *after]
    assert outcome(bench, written(tmp_path, events)) is None


def test_a_run_that_does_not_go_on_long_enough_has_no_outcome(bench: Any, tmp_path: Path) -> None:
    after = [finished(2 + number, 10.5 + number / 5) for number in range(bench.ALONE_STEPS - 1)]
    events = [finished(0, 9.0), recovered(2, 10.2), *after]
    assert outcome(bench, written(tmp_path, events)) is None


def test_torchft_trains_on_with_the_first_step_committed_alone(bench: Any) -> None:
    records = [
        iteration(8.0, 1),
        iteration(8.5, 2, committed=False),  # the other replica was joining
        iteration(9.9, 2),
        iteration(10.01, 2),  # was reduced before the signal
        iteration(12.0, 2, committed=False),
        *(iteration(15.0 + number / 10, 1) for number in range(bench.ALONE_STEPS)),
    ]
    found = bench.judge(bench.torchft_ends(records, SIGNAL_S), SIGNAL_S)
    assert found.resume_s == pytest.approx(5.0)
    assert found.less_a_step_s == pytest.approx(4.9)
    assert found.steps_lost == 1
    assert found.batch_kept == 0.5
    assert bench.judge(bench.torchft_ends(records[:-1], SIGNAL_S), SIGNAL_S) is None
    assert not bench.torchft_ends(records[:3], math.inf)[-1].alone


def test_figures_are_medians_of_the_rounds_that_worked(bench: Any) -> None:
    cases = bench.parse([]).cases
    rounds = [
        {"holdfast_kill": bench.Outcome(seconds, seconds - 0.1, 0.1, lost, 1.0)}
        for seconds, lost in ((0.1, 0), (0.9, 0), (0.2, 1))
    ]
    found = json.loads(json.dumps(bench.figures(cases, [*rounds, {}])))
    assert {
        name for name in found if name.endswith("_s") and not isinstance(found[name], dict)
    } == {
        "torchft_default_s",
        "torchft_1s_s",
        "torchft_frozen_s",
        "torchft_1s_frozen_s",
        "holdfast_kill_s",
        "holdfast_frozen_s",
        "holdfast_1s_frozen_s",
    }
    assert found["holdfast_kill_s"] == 0.2
    assert found["steps_lost"]["holdfast_kill"] == pytest.approx(0.3333)
    assert found["failed"]["holdfast_kill"] == 1
    assert found["torchft_default_s"] is None
    assert found["failed"]["torchft_default"] == 4


def test_one_system_or_single_cases_can_be_chosen(bench: Any) -> None:
    assert {case.system for case in bench.parse(["--only", "holdfast"]).cases} == {"holdfast"}
    assert [case.name for case in bench.parse(["--case", "torchft_1s"]).cases] == ["torchft_1s"]
    with pytest.raises(SystemExit):
        bench.parse(["--only", "holdfast", "--case", "torchft_1s"])
    with pytest.raises(SystemExit):
        bench.parse(["--rounds", "0"])


def test_nothing_is_installed_when_told_not_to(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = subprocess.run(
        [sys.executable, str(BENCH), "--skip-install", "--venv", str(venv)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "run once without it" in done.stderr
    assert not venv.exists()
