"""A process that gets a part of its time only: really stopped and woken, and never left stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.live import is_running, process_state, wait_until

LIMIT_S = 60.0  # against hangs only

SHARED = """
import os, sys, time
from holdfast.faults.duty_cycle import DutyCycle

cycle = DutyCycle()
cycle.set(FACTOR)
print("shared", flush=True)
WHAT
"""
SPIN = """
start_s, cpu_s = time.monotonic(), time.process_time()
while time.process_time() - cpu_s < 0.2 or time.monotonic() - start_s < 0.2:
    pass
print((time.monotonic() - start_s) / (time.process_time() - cpu_s), flush=True)
"""


class Process:
    def __init__(self, what, factor=3.0):
        self._running = subprocess.Popen(
            [sys.executable, "-c", SHARED.replace("FACTOR", repr(factor)).replace("WHAT", what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._running.pid
        assert self.line() == "shared"

    def line(self):
        return self._running.stdout.readline().strip()

    def say(self):
        self._running.stdin.write("go on\n")
        self._running.stdin.flush()

    def helper(self):
        """Its only child."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        wait_until(lambda: children.read_text().split(), "the helper to start", LIMIT_S)
        [child] = children.read_text().split()
        return int(child)

    def wait_for_stop(self):
        wait_until(lambda: process_state(self.pid) == "T", "the process to be stopped", LIMIT_S)

    def ended(self):
        return self._running.wait(LIMIT_S)

    def close(self):
        self._running.kill()
        self._running.communicate(timeout=LIMIT_S)


@pytest.fixture
def process():
    processes = []

    def start(*what):
        processes.append(Process(*what))
        return processes[-1]

    yield start
    for one in processes:
        one.close()


def test_a_process_is_stopped_and_woken_again_and_again_and_still_gets_on(process):
    shared = process("sys.stdin.readline(); print('got on', flush=True); sys.stdin.readline()")
    for _ in range(3):
        shared.wait_for_stop()
        wait_until(lambda: process_state(shared.pid) != "T", "the process to be woken", LIMIT_S)
    shared.say()
    assert shared.line() == "got on"


def test_it_takes_at_least_as_long_as_its_share_of_the_time_says(process):
    spinning = process(f"while True:\n    {SPIN.strip().replace(chr(10), chr(10) + '    ')}")
    wait_until(lambda: float(spinning.line()) > 2.5, "work to take 3 times as long", LIMIT_S)


def test_with_all_of_its_time_back_a_process_has_no_helper_and_is_awake(process):
    shared = process("sys.stdin.readline(); cycle.set(1.0); print('back'); sys.stdin.readline()")
    helper = shared.helper()
    shared.wait_for_stop()
    shared.say()
    wait_until(lambda: not is_running(helper), "the helper to end", LIMIT_S)
    shared.say()
    assert shared.ended() == 0


def test_a_share_that_stays_the_same_keeps_its_helper_and_another_one_changes_it(process):
    what = "sys.stdin.readline(); cycle.set({}); print('set', flush=True); sys.stdin.readline()"
    same, other = process(what.format(3.0)), process(what.format(2.0))
    helpers = [same.helper(), other.helper()]
    for one in (same, other):
        one.say()
        assert one.line() == "set"
    assert same.helper() == helpers[0]
    assert other.helper() != helpers[1]


def test_the_helper_of_a_process_that_is_killed_ends(process):
    shared = process("time.sleep(60)")
    helper = shared.helper()
    shared.wait_for_stop()
    os.kill(shared.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(helper), "the helper to end", LIMIT_S)


def test_a_process_that_runs_another_program_is_left_in_peace_and_awake(process):
    program = "'-c', 'print(1, flush=True); input()'"
    shared = process(f"sys.stdin.readline(); os.execl(sys.executable, 'x', {program})")
    helper = shared.helper()
    shared.wait_for_stop()
    shared.say()
    assert shared.line() == "1"
    wait_until(lambda: not is_running(helper), "the helper to end", LIMIT_S)
    shared.say()
    assert shared.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_helper_ends_with_its_process_only(process, number):
    shared = process("sys.stdin.readline(); print(len(cycle._helper.args)); sys.stdin.readline()")
    helper = shared.helper()
    shared.wait_for_stop()  # it has been at work: signals are ignored by now
    os.kill(helper, number)
    shared.wait_for_stop()
    wait_until(lambda: process_state(shared.pid) != "T", "the process to be woken", LIMIT_S)
    shared.wait_for_stop()
    assert is_running(helper)
