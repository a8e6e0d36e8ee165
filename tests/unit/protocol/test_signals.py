"""Who does what about the signals that end a run: real signals, in bare processes."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from holdfast.cli.terminal.signals import BURST_S, Repeats
from holdfast.protocol.signals import ENDING

CHILD = """
import multiprocessing, os, select, signal, sys
from holdfast.cli.terminal import signals

def idle():
    os.read(os.pipe()[0], 1)  # as one that waits for work

getattr(signals, sys.argv[1])()
child = multiprocessing.get_context("fork").Process(target=idle)
child.start()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass  # handlers run between two looks, however late a signal comes
child.terminate()
child.join(20)
print("child", child.exitcode, flush=True)
"""


@pytest.fixture
def begin():
    started = []

    def start(way: str) -> subprocess.Popen:
        words = [sys.executable, "-c", CHILD, way]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_r5_a_worker_outlives_them_all_and_can_still_end_its_own_processes(begin) -> None:
    worker = begin("leave_to_launcher")
    for number in ENDING:
        worker.send_signal(number)
    said, _ = worker.communicate("go\n", timeout=30)
    assert said == f"child {-signal.SIGTERM}\n"
    assert worker.returncode == 0


def test_r5_a_worker_by_hand_outlives_the_first_and_ends_at_the_second(begin) -> None:
    worker = begin("defer")
    worker.send_signal(signal.SIGTERM)
    assert "a second signal stops it at once" in worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == -signal.SIGINT


def test_r5_the_echo_of_a_signal_is_not_a_second_wish() -> None:
    now_s = [0.0]
    repeats = Repeats(lambda: now_s[0])
    assert repeats.counts(signal.SIGTERM)
    assert not repeats.counts(signal.SIGTERM)  # ``timeout``: to the child, then to the group
    assert not repeats.counts(signal.SIGHUP)
    assert repeats.counts(signal.SIGINT)  # somebody pressed it
    now_s[0] = 2 * BURST_S
    assert repeats.counts(signal.SIGTERM)
