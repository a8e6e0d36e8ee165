"""Gaps in the heap: given back beyond what was ever in use at once, and only then."""

import os
import subprocess
import sys

import pytest

from holdfast.host import heap

MB = 1 << 20
# As workers have it: blocks below 32 MB are in the heap, and stay there when they are freed.
WORKERS = {"MALLOC_MMAP_THRESHOLD_": str(32 * MB), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
SCRIPT = """
from holdfast.host import heap

MB = 1 << 20
heap.LEAST_BYTES = {least} * MB
gaps = heap.Gaps()
blocks = [b"x" * (4 * MB) for _ in range(100)]
gaps.look()
del blocks[::2]
if {larger}:
    blocks += [b"x" * (5 * MB) for _ in range(60)]  # which fit into no gap
    gaps.look()
before = heap.held_bytes()
gaps.give_back()
print(before // MB, heap.held_bytes() // MB)
"""


OTHERS = """
from holdfast.host import heap

heap.LEAST_BYTES = 64 << 20
trims, trim = [], heap.trim
heap.trim = lambda: (trims.append(1), trim())
gaps = heap.Gaps()
kept = [(number, number + 1) for number in range(2_000_000)]  # in memory of Python's own
gaps.look()
for _ in range(5):
    gaps.give_back()
print(len(trims))
"""


def held_before_and_after(*, least: int, larger: bool) -> tuple[int, int]:
    if not heap.IS_KNOWN:
        pytest.skip("this C library has no mallinfo2")
    command = [sys.executable, "-c", SCRIPT.format(least=least, larger=larger)]
    told = subprocess.run(command, env=os.environ | WORKERS, capture_output=True, check=True)
    before, after = map(int, told.stdout.split())
    return before, after


def test_what_is_held_beyond_the_most_that_was_used_goes_back():
    before, after = held_before_and_after(least=64, larger=True)
    assert before > 690  # 500 of them in use
    assert after < 560


def test_what_every_step_uses_again_stays():
    before, after = held_before_and_after(least=64, larger=False)
    assert before > 390  # 200 of them in use
    assert after > 390


def test_a_small_process_gives_nothing_back():
    before, after = held_before_and_after(least=4096, larger=True)
    assert after == before


def test_memory_that_is_not_the_heaps_is_taken_for_a_gap_once_at_most():
    command = [sys.executable, "-c", OTHERS]
    told = subprocess.run(command, env=os.environ | WORKERS, capture_output=True, check=True)
    assert int(told.stdout) <= 1


def test_where_nobody_can_tell_what_is_held_nothing_is_given_back(monkeypatch, tmp_path):
    monkeypatch.setattr(heap, "STATM", tmp_path / "statm")
    monkeypatch.setattr(heap, "LEAST_BYTES", 0)
    monkeypatch.setattr(heap, "trim", lambda: pytest.fail("it was given back"))
    gaps = heap.Gaps()
    gaps.look()
    gaps.give_back()
    assert heap.held_bytes() == 0
