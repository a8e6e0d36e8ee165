"""A small sample of each benchmark: it runs, and its last line is what it promises. No timing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def figures(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *arguments],
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_period_bench_prints_its_figures() -> None:
    found = figures("period.py", "--rounds", "1", "--steps", "6")
    assert set(found) == {
        "zero_bubble_over_bound",
        "one_f_one_b_over_bound",
        "overhead_ms_per_op",
        "overhead_ms_per_step",
    }
    assert found["zero_bubble_over_bound"] >= 1.0, "faster than the bound: it measures nothing"


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_overhead_bench_prints_its_figures_and_leaves_no_process() -> None:
    found = figures("overhead.py", "--rounds", "1", "--steps", "5", "--turn", "2")
    assert set(found) == {"fast_ratio", "exact_ratio", "fast_memory_ratio"}
    assert all(value > 0 for value in found.values())


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_planner_bench_prints_its_figures() -> None:
    found = figures("planner.py", "--quick")
    near = {"worst_of_bound_2S", "worst_of_bound_1_5S"}
    first = {"worst_first_of_bound_2S", "worst_first_of_bound_1_5S"}
    slow = {"slow_of_capacity_3S", "slow_of_capacity_1_5S"}
    times = {"first_plan_s", "exponent", "peak_bytes"}
    assert set(found) == near | first | slow | times | {"of_ideal", "ahead_everywhere"}
    assert all(1.0 <= found[name] < 1.1 for name in near | first), "no bound, or no good plan"
    assert all(0.9 < found[name] <= 1.0 for name in slow)
    assert found["ahead_everywhere"] is True


@pytest.mark.bench
@pytest.mark.wide
def test_the_journal_bench_prints_its_figures(tmp_path: Path) -> None:
    found = figures("journal.py", "--num", "20", "--dir", str(tmp_path))
    assert set(found) == {"file"}
    assert 0 < found["file"]["median_ms"] <= found["file"]["p99_ms"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_tls_bench_prints_its_figures() -> None:
    pytest.importorskip("cryptography")
    few = ["--messages", "20", "--connections", "3", "--tensors", "1"]
    found = figures("tls.py", "--rounds", "1", *few)
    control = {"round_trip_us", "set_up_ms", "set_up_server_cpu_ms"}
    tensors = {"tensor_round_trip_us", "tensor_gb_s", "tensor_cpu_s_gb"}
    assert set(found) == {f"{way}_{name}" for way in ("plain", "tls") for name in control | tensors}
    assert all(value > 0 for value in found.values())


@pytest.mark.bench
@pytest.mark.wide
def test_two_ranks_of_a_worker_leave_the_same_bits() -> None:
    few = ["--rounds", "1", "--microbatches", "3", "--width", "64"]
    found = figures("worker_groups.py", *few)
    assert found["same_bits"] is True
    assert found["agreement_us"] > 0


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_real_run_is_simulated_about_as_it_was() -> None:
    found = figures("simulate.py", "--section", "real", "--quick", "--op-ms", "10")
    assert found["failures"] == []
    assert found["real_cells"] == 1
    assert found["error_throughput"] >= 0
    assert found["error_stall"] >= 0


@pytest.mark.bench
@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_events_bench_prints_its_figures(tmp_path: Path) -> None:
    sizes = ("--steps", "1000", "--workers", "8", "--emitted", "20", "--dir", str(tmp_path))
    found = figures("events.py", *sizes)
    assert set(found) == {"opening", "writing_4", "writing"}
    assert set(found["opening"]) == {"with_index", "without_index"}
    for case in found["opening"].values():
        assert (case["steps"], case["operations"]) == (1000, 64)
    assert set(found["writing"]) == {"in_the_loop", "by_the_writer", "stuck_disk"}
    assert list(tmp_path.iterdir()) == []
