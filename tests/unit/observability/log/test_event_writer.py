"""Emitting waits for no disk, be it stuck or full; and on a sound one nothing is lost."""

import errno
import io
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.live import wait_until
from helpers.sample_events import EVENTS, sample
from helpers.scarce import refuse_threads
from holdfast.observability.events import StepFinished, Warned, WorkerStep, decode_event
from holdfast.observability.log import EVENTS_FILE, EventWriter, RunLog, read_events

LIMIT_S = 60.0
STEP = sample(StepFinished)


class Disk(io.RawIOBase):
    """Takes what it is given as long as it is not stuck."""

    def __init__(self):
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.lines, self.num_writes = [], 0

    def write(self, data):
        self.num_writes += 1
        assert self.goes_on.wait(LIMIT_S)
        self.lines.append(bytes(data))
        return len(data)

    def steps(self):
        return [decode_event(line.decode()).step for line in self.lines]


def step(number):
    return replace(STEP, step=number)


def test_on_a_sound_disk_an_event_is_written_when_emit_returns():
    disk = Disk()
    writer = EventWriter(disk, patience_s=LIMIT_S)
    for number in range(20):
        writer.emit(replace(sample(WorkerStep), step=number))
        writer.emit(step(number))
        assert len(disk.lines) == 2 * (number + 1)
    writer.close()
    assert writer.num_dropped == 0


def test_a_stuck_disk_is_waited_for_once_and_all_is_written_when_it_goes_on():
    disk = Disk()
    writer = EventWriter(disk, patience_s=0.01)
    disk.goes_on.clear()
    for number in range(500):
        writer.emit(step(number))  # each wait would be an hour
        writer.patience_s = 3600.0
    assert disk.lines == []
    disk.goes_on.set()
    writer.close()
    assert disk.steps() == list(range(500))
    assert writer.num_dropped == 0


def test_after_a_stuck_disk_goes_on_it_is_not_waited_for_at_once():
    disk = Disk()
    writer = EventWriter(disk, patience_s=0.01)
    disk.goes_on.clear()
    writer.emit(step(0))
    disk.goes_on.set()
    wait_until(lambda: len(disk.lines) == 1, "the first event", LIMIT_S)
    disk.goes_on.clear()
    writer.patience_s = 3600.0
    writer.emit(step(1))
    writer.emit(step(2))
    disk.goes_on.set()
    writer.close()
    assert disk.steps() == [0, 1, 2]


def test_what_does_not_fit_into_the_queue_is_dropped_and_times_of_operations_first():
    disk = Disk()
    writer = EventWriter(disk, patience_s=0.01, queue_bytes=20_000)
    disk.goes_on.clear()
    work = replace(sample(WorkerStep), step=7)
    for _ in range(1000):
        writer.emit(work)
    num_work = 1000 - writer.num_dropped
    assert 0 < num_work < 1000
    before = writer.num_dropped
    for number in range(10):
        writer.emit(step(number))
    assert writer.num_dropped == before
    for number in range(10, 1000):
        writer.emit(step(number))
    num_dropped = writer.num_dropped
    assert num_dropped > before
    disk.goes_on.set()
    writer.close()
    assert len(disk.lines) == 2000 - num_dropped
    assert sum(map(len, disk.lines)) <= 20_000


def test_closing_does_not_wait_for_ever_and_counts_what_was_not_written():
    disk = Disk()
    writer = EventWriter(disk, patience_s=0.01, close_limit_s=0.01)
    disk.goes_on.clear()
    for number in range(5):
        writer.emit(step(number))
    writer.close()
    assert writer.num_dropped == 5
    disk.goes_on.set()
    wait_until(lambda: disk.closed, "the thread to end", LIMIT_S)


class FullDisk(io.RawIOBase):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


class AlmostFullDisk(io.RawIOBase):
    def write(self, data):
        return 3


@pytest.mark.parametrize("disk", [FullDisk(), AlmostFullDisk()])
def test_emitting_to_a_full_disk_counts_the_drops_and_raises_nothing(disk):
    writer = EventWriter(disk)
    for event in EVENTS[:3]:
        writer.emit(event)
    writer.close()
    assert writer.num_dropped == 3


class ShortOfRoom(Disk):
    """Half of the second line fits, and then all is well again."""

    def write(self, data):
        super().write(data)
        if self.num_writes == 2:
            self.lines[-1] = bytes(data[:25])
            return 25
        return len(data)


def test_after_half_a_line_the_next_event_begins_a_line(tmp_path):
    disk = ShortOfRoom()
    writer = EventWriter(disk)
    for number in range(4):
        writer.emit(step(number))
    writer.close()
    assert writer.num_dropped == 1
    (tmp_path / EVENTS_FILE).write_bytes(b"".join(disk.lines))
    assert [event.step for event in read_events(tmp_path / EVENTS_FILE)] == [0, 2, 3]


def test_a_run_that_goes_on_after_half_a_line_loses_none_of_its_own(tmp_path):
    (tmp_path / EVENTS_FILE).write_text('{"event": "StepFinis')
    writer = EventWriter.of_run(tmp_path, None)
    writer.emit(step(3))
    writer.close()
    assert [event.step for event in read_events(tmp_path / EVENTS_FILE)] == [3]
    assert RunLog.open(tmp_path).steps.step.tolist() == [3]


def test_a_run_directory_without_room_for_an_index_keeps_its_events(tmp_path):
    (tmp_path / "index").write_text("a file where the folder should be")
    writer = EventWriter.of_run(tmp_path, None)
    for number in range(3):
        writer.emit(step(number))
    writer.close()
    assert writer.num_dropped == 0
    assert RunLog.open(tmp_path).steps.step.tolist() == [0, 1, 2]


def test_without_a_thread_events_are_written_at_once(monkeypatch):
    refused = refuse_threads(monkeypatch, "write events", 2)
    disk = Disk()
    writer = EventWriter(disk, patience_s=LIMIT_S)
    for number in range(3):
        writer.emit(step(number))
        assert disk.steps() == list(range(number + 1))
    assert len(refused) == 2
    writer.close()


def test_emitting_after_close_is_a_drop(tmp_path):
    writer = EventWriter.open(tmp_path / EVENTS_FILE)
    writer.close()
    writer.emit(EVENTS[0])
    writer.close()
    assert writer.num_dropped == 1


def test_a_value_that_json_cannot_hold_is_a_drop(tmp_path):
    writer = EventWriter.open(tmp_path / EVENTS_FILE)
    writer.emit(Warned(at_s=0.0, reason=object()))
    writer.close()
    assert writer.num_dropped == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from helpers.sample_events import EVENTS
from holdfast.observability.log import EventWriter
writer = EventWriter.of_run(Path(sys.argv[1]), None)
writer.patience_s = 60.0
for event in EVENTS:
    writer.emit(event)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_has_written_all_that_it_has_emitted(tmp_path):
    tests = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=tests, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_events(tmp_path / EVENTS_FILE) == EVENTS
    log = RunLog.open(tmp_path)
    assert (len(log.steps), log.is_running) == (1, False)
