"""The writer's promises: it writes when there is time, and no trouble reaches the training."""

import errno
import os
import subprocess
import sys
import threading

import pytest
import torch

from helpers.harness.log_harness import (
    FOR_EVER_S,
    LIMIT_S,
    RUN,
    WORKER,
    Blocked,
    LogIdentity,
    States,
    has,
    log,
    read,
    reader,
    segments,
    values,
    write,
    writer,
)
from helpers.harness.transport_harness import wait_until
from helpers.scarce import refuse_threads
from holdfast.errors import LogGap
from holdfast.storage.log.folder import LogFolder, write_all
from holdfast.storage.log.frame import SAID_AGAIN, Flag, FrameKind, FrameName
from holdfast.storage.log.tensors import encode_frame


@pytest.fixture
def make(tmp_path):
    """Writers that are closed in the end, and what they reported."""
    made = []

    def start(**settings):
        states = States()
        made.append(writer(tmp_path, on_state=states, **settings))
        return made[-1], states

    yield start
    for one in made:
        one.close()


def pause() -> None:
    """Long enough to write, if it were to."""
    threading.Event().wait(0.2)


def size(root) -> int:
    return sum(path.stat().st_size for path in segments(root))


def steps(root) -> list[int]:
    return [step for step in range(100) if has(reader(root), step)]


# --- when it writes ---


def test_nothing_is_written_while_the_worker_computes_and_little_is_queued(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    log(made, 0)
    pause()
    assert segments(tmp_path) == []
    assert made.num_bytes == 0


def test_everything_is_written_while_the_worker_waits(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    for step in range(5):
        log(made, step)
    with made.waits():
        wait_until(lambda: steps(tmp_path) == list(range(5)))
        log(made, 5)
    with made.waits():
        wait_until(lambda: has(reader(tmp_path), 5))
    assert made.num_bytes > 0


def test_nothing_more_is_written_when_the_wait_is_over(make, tmp_path, monkeypatch):
    disk = Blocked(monkeypatch, write_all)
    made, _ = make(max_age_s=FOR_EVER_S)
    for step in range(3):
        log(made, step)
    with made.waits():
        assert disk.entered.wait(LIMIT_S)
    disk.let_go.set()
    wait_until(lambda: has(reader(tmp_path), 0))  # one was on its way
    pause()
    assert steps(tmp_path) == [0]


def test_an_old_frame_is_written_whatever_the_worker_does(make, tmp_path):
    made, _ = make(max_age_s=0.05)
    log(made, 0)
    wait_until(lambda: has(reader(tmp_path), 0))


def test_a_quarter_of_the_queue_is_enough_to_write_while_the_worker_computes(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S, queue_bytes=4000)
    for step in range(5):  # 200 bytes each
        log(made, step)
    pause()
    assert segments(tmp_path) == []
    log(made, 5)
    wait_until(lambda: has(reader(tmp_path), 0))
    pause()
    assert steps(tmp_path) == [0]  # and no more than necessary


def test_flush_writes_all_and_says_so(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    for step in range(3):
        log(made, step)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [0, 1, 2]


def test_flush_gives_up_at_its_limit(make, monkeypatch):
    disk = Blocked(monkeypatch, write_all)
    made, _ = make()
    log(made, 0)
    assert not made.flush(0.05)
    disk.let_go.set()
    assert made.flush(LIMIT_S)


def test_appending_does_not_wait_for_the_disk(make, monkeypatch, tmp_path):
    disk = Blocked(monkeypatch, write_all)
    made, _ = make()
    log(made, 0)
    assert disk.entered.wait(LIMIT_S)
    for step in range(1, 50):
        log(made, step)
    with made.waits():
        pass
    disk.let_go.set()
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == list(range(50))


def test_closing_writes_what_is_left_and_ends_the_thread(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    log(made, 0)
    made.close()
    made.close()
    assert steps(tmp_path) == [0]
    assert not made.is_alive
    log(made, 1)
    assert made.num_queued == 0


def test_closing_at_once_drops_what_is_left(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    log(made, 0)
    made.close(0)
    assert not made.is_alive
    assert segments(tmp_path) == []


def test_tensors_are_let_go_once_they_are_written(make):
    made, _ = make()
    tensor = torch.ones(4)
    before = sys.getrefcount(tensor)
    made.append(FrameKind.ACTIVATION, 0, 0, 0, 0, (tensor,))
    assert made.flush(LIMIT_S)
    wait_until(lambda: sys.getrefcount(tensor) <= before)


# --- segments ---


def test_a_large_segment_is_followed_by_a_new_one(make, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.storage.log.folder.SEGMENT_BYTES", 700)
    made, _ = make()
    for step in range(7):
        log(made, step)
    assert made.flush(LIMIT_S)
    assert len(segments(tmp_path)) == 3
    assert steps(tmp_path) == list(range(7))


def fill(made, steps) -> None:
    """Steps with a checkpoint every two, each with its verdict once the next has begun."""
    for step in steps:
        made.begin_step(step, new_segment=step % 2 == 0)
        if step:
            numbers = torch.tensor([float(step - 1), 0.0], dtype=torch.float64)
            made.append(FrameKind.VERDICT, 0, step - 1, 0, 0, (numbers,))
        log(made, step)
    assert made.flush(LIMIT_S)


def test_trimming_leaves_the_steps_from_the_checkpoint_on_and_the_verdict_before(make, tmp_path):
    made, _ = make()
    fill(made, range(7))
    assert len(segments(tmp_path)) == 4
    made.trim(4)
    assert made.flush(LIMIT_S)
    found = reader(tmp_path)
    assert steps(tmp_path) == [4, 5, 6]
    assert [found.verdict(step).norm for step in (3, 4, 5)] == [3.0, 4.0, 5.0]
    with pytest.raises(LogGap):
        found.verdict(2)


def test_trimming_between_two_segments_takes_only_whole_ones(make, tmp_path):
    made, _ = make()
    fill(made, range(6))
    made.trim(3)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [2, 3, 4, 5]


def test_trimming_drops_what_waits_to_be_written_in_vain(make, tmp_path):
    made, _ = make(max_age_s=FOR_EVER_S)
    for step in range(4):
        log(made, step)
    made.trim(2)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [2, 3]


def test_a_verdict_that_was_said_again_keeps_its_segment(make, tmp_path):
    made, _ = make()
    log(made, 0)
    numbers = torch.tensor([1.0, 0.0], dtype=torch.float64)
    made.append(FrameKind.VERDICT, 0, 1, SAID_AGAIN, 0, (numbers,))
    assert made.flush(LIMIT_S)
    made.trim(2)
    assert made.flush(LIMIT_S)
    assert reader(tmp_path).verdict(1).norm == 1.0
    made.trim(3)
    assert made.flush(LIMIT_S)
    assert segments(tmp_path) == []


def said_again(made, step: int) -> None:
    """A checkpoint of the step is whole, and the verdict before it still needed."""
    numbers = torch.tensor([float(step - 1), 0.0], dtype=torch.float64)
    made.trim(step, FrameName(FrameKind.VERDICT, 0, step - 1, SAID_AGAIN, 0), (numbers,))


def test_a_verdict_is_said_again_before_its_segment_goes(make, tmp_path, monkeypatch):
    """A replay may read at any moment, also while the worker computes and nothing is written."""
    made, _ = make(max_age_s=FOR_EVER_S)
    made.begin_step(0, new_segment=True)
    log(made, 0)
    numbers = torch.tensor([0.0, 0.0], dtype=torch.float64)
    made.append(FrameKind.VERDICT, 0, 0, 0, 0, (numbers,))
    assert made.flush(LIMIT_S)
    trim, known = LogFolder.trim, reader(tmp_path)
    seen = []

    def trim_slowly(folder, before_step: int) -> None:
        seen.append(reader(tmp_path).verdict(0).norm)
        trim(folder, before_step)
        seen.append(reader(tmp_path).verdict(0).norm)

    monkeypatch.setattr(LogFolder, "trim", trim_slowly)
    said_again(made, 1)
    wait_until(lambda: len(seen) == 2)
    assert seen == [0.0, 0.0]
    assert steps(tmp_path) == []  # and it keeps nothing else
    assert known.verdict(0).norm == 0.0  # whoever has looked before finds it too


def test_trimming_reaches_the_mirror_and_what_an_earlier_process_left(make, tmp_path):
    mirror = tmp_path / "mirror"
    write(tmp_path, range(2), mirror)
    write(tmp_path, range(2), identity=LogIdentity("6", WORKER))
    made = writer(tmp_path, mirror)
    log(made, 2)
    made.trim(2)
    assert made.flush(LIMIT_S)
    made.close()
    assert steps(tmp_path) == [2]
    assert steps(mirror) == [2]
    assert len(segments(tmp_path)) == 2  # that of another run is not ours to delete


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(make, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "writev", lambda fd, buffers: os.write(fd, b"".join(buffers)[:7]))
    made, _ = make()
    for step in range(3):
        log(made, step)
    assert made.flush(LIMIT_S)
    found = reader(tmp_path)
    assert all(torch.equal(read(found, step), values(step)) for step in range(3))


# --- trouble ---


class FullDisk:
    """Has room for so many bytes; then half of a write comes through and the rest fails."""

    def __init__(self, monkeypatch, room: int, folder: str = "") -> None:
        self.room, self._folder = room, folder
        monkeypatch.setattr(os, "writev", self._write)

    def _write(self, fd: int, buffers) -> int:
        if self._folder not in os.readlink(f"/proc/self/fd/{fd}"):
            return os.write(fd, b"".join(buffers))
        data = b"".join(buffers)[: self.room]
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data)
        return os.write(fd, data)


def test_a_full_disk_stops_the_log_once_and_it_begins_again_after_a_checkpoint(
    make, tmp_path, monkeypatch
):
    made, states = make()
    disk = FullDisk(monkeypatch, room=1000)
    for step in range(10):
        made.begin_step(step, new_segment=step % 5 == 0)
        log(made, step)
        made.flush(LIMIT_S)
    assert [logging for logging, *_ in states] == [False]
    assert states[0][1] == 3
    assert "No space left on device" in states[0][2]
    assert str(tmp_path) in states[0][2]
    assert not made.flush(LIMIT_S)
    assert reader(tmp_path).damaged == []  # half a frame at the end is no damage

    made.trim(5)
    assert not made.flush(LIMIT_S)
    disk.room = 10**6
    log(made, 9)  # the rest of a step that has begun: still nothing
    made.begin_step(9)
    log(made, 9)
    made.begin_step(10, new_segment=True)
    log(made, 10)
    assert made.flush(LIMIT_S)
    assert [(logging, step) for logging, step, _ in states] == [(False, 3), (True, 10)]
    assert steps(tmp_path) == [10]


def test_a_frame_after_one_that_was_cut_off_begins_a_new_segment(tmp_path, monkeypatch):
    folder = LogFolder(tmp_path / WORKER, LogIdentity(RUN, WORKER))
    disk = FullDisk(monkeypatch, room=400)

    def write_step(step: int) -> None:
        name = FrameName(FrameKind.ACTIVATION, 0, step, 0, 0)
        folder.write(encode_frame(name, Flag.NONE, (values(step),), (False,)), step)

    write_step(0)
    with pytest.raises(OSError, match="No space left"):
        write_step(1)
    disk.room = 1000
    write_step(2)
    folder.end_segment()
    assert steps(tmp_path) == [0, 2]
    assert reader(tmp_path).damaged == []
    assert folder.num_bytes == size(tmp_path)


def test_a_disk_that_stays_full_stops_it_again_after_the_checkpoint(make, monkeypatch):
    made, states = make()
    FullDisk(monkeypatch, room=0)
    for step in range(4):
        made.begin_step(step)
        log(made, step)
        made.flush(LIMIT_S)
        made.trim(step)
        made.flush(LIMIT_S)
    assert [(s[0], s[1]) for s in states] == [
        (False, 0),
        (True, 1),
        (False, 1),
        (True, 2),
        (False, 2),
        (True, 3),
        (False, 3),
    ]


def test_the_same_checkpoint_told_twice_begins_nothing(make, monkeypatch):
    made, states = make()
    made.trim(5)
    made.flush(LIMIT_S)
    FullDisk(monkeypatch, room=0)
    log(made, 5)
    made.flush(LIMIT_S)
    made.trim(5)
    made.flush(LIMIT_S)
    made.begin_step(6)
    assert [logging for logging, *_ in states] == [False]


FULL = """
import resource, signal, sys
from pathlib import Path
from helpers.harness.log_harness import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
states = States()
made = writer(Path(sys.argv[1]), on_state=states)
for step in range(9):
    log(made, step)
assert not made.flush(LIMIT_S)
made.close()
print(states)
"""


def test_a_limit_of_the_kernel_on_a_real_file_stops_the_log_and_nothing_else(tmp_path):
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert "(False, 3, " in done.stdout
    assert "File too large" in done.stdout
    assert steps(tmp_path) == [0, 1, 2]
    assert size(tmp_path) == 1000


def test_a_directory_that_cannot_be_made_is_reported_and_no_more(make, tmp_path):
    (tmp_path / WORKER).write_text("a file is in the way")
    made, states = make()
    for step in range(3):
        log(made, step)
    assert not made.flush(LIMIT_S)
    assert len(states) == 1
    assert states[0][0] is False
    assert WORKER in states[0][2]


def test_a_lost_mirror_is_reported_and_the_log_goes_on(make, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    FullDisk(monkeypatch, room=400, folder=str(mirror))
    made, states = make(mirror=mirror)
    for step in range(4):
        log(made, step)
    assert made.flush(LIMIT_S)
    assert [(logging, step) for logging, step, _ in states] == [(True, 1)]
    assert f"the log goes on in {tmp_path / WORKER}" in states[0][2]
    assert steps(tmp_path) == [0, 1, 2, 3]
    assert steps(mirror) == [0]


def test_the_mirror_goes_on_when_the_folder_is_lost(make, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    FullDisk(monkeypatch, room=400, folder=str(tmp_path / WORKER))
    made, states = make(mirror=mirror)
    for step in range(4):
        log(made, step)
    assert made.flush(LIMIT_S)
    assert len(states) == 1
    assert torch.equal(read(reader(tmp_path, mirror), 3), values(3))


def test_a_budget_is_kept_and_frees_up_with_the_next_checkpoint(make, tmp_path):
    limit = 1200
    made, states = make(limit_bytes=limit)
    for step in range(8):
        made.begin_step(step, new_segment=step % 4 == 0)
        log(made, step)
        made.flush(LIMIT_S)
    assert size(tmp_path) <= limit
    assert len(states) == 1
    logging, stopped_at, reason = states[0]
    assert (logging, stopped_at) == (False, 4)
    assert "limit of 1,200 bytes" in reason
    made.trim(8)
    made.flush(LIMIT_S)
    assert size(tmp_path) == 0
    made.begin_step(8)
    log(made, 8)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [8]


def test_what_an_earlier_process_left_counts_for_the_budget(make, tmp_path):
    write(tmp_path, range(3))
    left = size(tmp_path)
    made, states = make(limit_bytes=left + 200)
    log(made, 3)
    assert not made.flush(LIMIT_S)
    assert "limit" in states[0][2]


def test_a_disk_that_is_too_slow_stops_the_log_and_not_the_worker(make, tmp_path, monkeypatch):
    disk = Blocked(monkeypatch, write_all)
    made, states = make(queue_bytes=1000)  # room for five
    log(made, 0)
    assert disk.entered.wait(LIMIT_S)
    for step in range(1, 9):
        log(made, step)
    assert len(states) == 1
    logging, step, reason = states[0]
    assert (logging, step) == (False, 5)
    assert "too slow" in reason
    assert made.num_queued == 0  # dropped: memory is not held for a disk that does not write
    disk.let_go.set()
    wait_until(lambda: steps(tmp_path) == [0])


def test_a_write_that_fails_after_the_log_was_stopped_is_not_reported_again(make, monkeypatch):
    def fail(fd, buffers) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = Blocked(monkeypatch, fail)
    made, states = make(queue_bytes=500)
    log(made, 0)
    assert disk.entered.wait(LIMIT_S)
    for step in range(1, 4):
        log(made, step)
    disk.let_go.set()
    assert not made.flush(LIMIT_S)
    assert ["too slow" in reason for _, _, reason in states] == [True]


def test_what_the_thread_cannot_encode_stops_the_log_with_a_reason(make, tmp_path):
    made, states = make()
    made.append(FrameKind.ACTIVATION, 0, 0, 0, 0, (torch.ones(2, device="meta"),))
    made.flush(LIMIT_S)
    assert [logging for logging, *_ in states] == [False]
    assert made.is_alive


def test_two_writers_of_one_folder_never_write_into_one_file(tmp_path):
    both = [writer(tmp_path), writer(tmp_path)]
    for step in range(20):
        log(both[step % 2], step)
    assert all(one.flush(LIMIT_S) for one in both)
    for one in both:
        one.close()
    assert steps(tmp_path) == list(range(20))
    assert reader(tmp_path).damaged == []
    assert len(segments(tmp_path)) == 2


def test_many_threads_may_append(make, tmp_path):
    made, _ = make()

    def run(microbatch: int) -> None:
        for step in range(50):
            log(made, step, microbatch)

    threads = [threading.Thread(target=run, args=(m,)) for m in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert made.flush(LIMIT_S)
    found = reader(tmp_path)
    for step in range(50):
        for microbatch in range(4):
            (tensor,) = found.read(FrameKind.ACTIVATION, 0, step, 0, microbatch)
            assert torch.equal(tensor, values(step, microbatch))


def test_without_a_thread_the_log_stops_and_begins_again_after_a_checkpoint(
    make, tmp_path, monkeypatch
):
    refused = refuse_threads(monkeypatch, "log", 2)
    made, states = make()
    log(made, 0)
    made.begin_step(1)
    log(made, 1)
    assert len(refused) == 2
    assert segments(tmp_path) == []
    assert not made.flush(LIMIT_S)
    made.begin_step(2)  # there is one now
    made.trim(2)
    assert not made.flush(LIMIT_S)  # it counts from the next step on
    made.begin_step(3)
    log(made, 3)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [3]
    assert [is_logging for is_logging, _, _ in states] == [False, True]


def test_a_thread_that_comes_with_the_first_step_writes_all(make, tmp_path, monkeypatch):
    refused = refuse_threads(monkeypatch, "log", 1)
    made, states = make()
    assert len(refused) == 1
    made.begin_step(0)
    log(made, 0)
    assert made.flush(LIMIT_S)
    assert steps(tmp_path) == [0]
    assert states == []


def test_a_log_that_never_had_a_thread_can_be_closed(make, monkeypatch):
    refused = refuse_threads(monkeypatch, "log", 100)
    made, _ = make()
    made.close()
    assert len(refused) == 1
