"""A part of a checkpoint that cannot be written is tried again, then told; nothing is raised."""

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.scarce import refuse_threads
from holdfast.runtime.link.control_link import Stopped
from holdfast.runtime.state import saving
from holdfast.runtime.state.saving import StageSaver, Written
from holdfast.storage.local_store import LocalStore
from holdfast.storage.manifest import partial_directory

NAME = "stage-0.0a1b2c3d"


class NotAnException(BaseException):
    """As torch's own error of a checkpoint is."""


class Told:
    """What a saver says, by version."""

    def __init__(self, run_dir: Path, limit_s: float = 20.0) -> None:
        self.failed: dict[int, str] = {}
        self.written: dict[int, Written] = {}
        self.saver = StageSaver(LocalStore(run_dir), NAME, limit_s, self.failed.__setitem__)

    def write(self, version: int, **more: bool) -> None:
        tensors = {"0.weight": torch.ones(3)}
        self.saver.write(version, tensors, lambda w: self.written.update({version: w}), **more)


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(saving, "LAST_PAUSES_S", (0.0,) * 5)
    return Told(tmp_path)


def fail_first(monkeypatch, num_times, kind=OSError):
    """The first tries end after half of the files are written."""
    write_part, tries = saving.write_part, []

    def write(folder, tensors):
        digests = write_part(folder, tensors)
        tries.append(folder)
        if len(tries) <= num_times:
            raise kind(28, "No space left on device")
        return digests

    monkeypatch.setattr(saving, "write_part", write)
    return tries


@pytest.mark.parametrize("kind", [OSError, NotAnException])
def test_r6_a_write_that_fails_is_told_and_leaves_nothing(told, tmp_path, monkeypatch, kind):
    tries = fail_first(monkeypatch, 100, kind)
    told.write(3)
    assert told.saver.wait()
    assert "No space left on device" in told.failed[3]
    assert len(tries) == 3
    assert not told.written
    assert not (partial_directory(tmp_path, 3) / NAME).exists()
    assert not told.saver.has(3)  # somebody else may write it, or this worker later


def test_r6_a_write_that_fails_twice_succeeds_the_third_time(told, tmp_path, monkeypatch):
    fail_first(monkeypatch, 2)
    told.write(3)
    assert told.saver.wait()
    assert not told.failed
    assert (partial_directory(tmp_path, 3) / NAME).is_dir()
    assert told.written[3].sizes.keys() == told.written[3].digests.keys()


def test_r6_the_last_part_of_a_run_is_tried_more_often(told, monkeypatch):
    fail_first(monkeypatch, 4)
    told.write(3, is_last=True)
    assert told.saver.wait()
    assert told.written.keys() == {3}


def test_r6_the_part_after_one_that_failed_is_written(told, monkeypatch):
    fail_first(monkeypatch, 3)
    told.write(3)
    told.write(4)
    assert told.saver.wait()
    assert (told.failed.keys(), told.written.keys()) == ({3}, {4})


def test_r6_a_disk_that_is_stuck_costs_the_next_part_and_not_the_run(tmp_path, monkeypatch):
    freed = threading.Event()
    monkeypatch.setattr(saving, "write_part", lambda folder, tensors: freed.wait(20) and {})
    told = Told(tmp_path, limit_s=0.05)
    told.write(3)
    told.write(4)
    assert "is still being written" in told.failed[4]
    freed.set()
    assert told.saver.wait(20.0)
    assert told.written.keys() == {3}


def test_a_part_for_which_there_is_no_thread_is_told_and_the_next_one_is_written(told, monkeypatch):
    refused = refuse_threads(monkeypatch, "checkpoint", 1)
    told.write(3)
    assert refused == ["checkpoint"]
    assert told.failed.keys() == {3}
    assert not told.saver.has(3)
    told.write(4)
    assert told.saver.wait()
    assert (told.failed.keys(), told.written.keys()) == ({3}, {4})


def test_the_last_part_is_written_without_a_thread_if_there_is_none(told, monkeypatch):
    refused = refuse_threads(monkeypatch, "checkpoint", 1)
    told.write(3, is_last=True)
    assert refused == ["checkpoint"]
    assert told.saver.wait()
    assert (told.failed.keys(), told.written.keys()) == (set(), {3})
    assert told.saver.has(3)


def test_a_saver_is_busy_until_its_part_is_on_disk_or_given_up(tmp_path, monkeypatch):
    freed = threading.Event()
    monkeypatch.setattr(saving, "write_part", lambda folder, tensors: freed.wait(20) and {})
    told = Told(tmp_path)
    assert not told.saver.is_busy
    told.write(3)
    assert told.saver.is_busy
    assert not told.saver.wait(0.0)
    freed.set()
    assert told.saver.wait()
    assert not told.saver.is_busy


def test_nothing_is_written_as_long_as_the_lease_has_ended(told, tmp_path):
    asked, renewed = threading.Event(), threading.Event()

    def may_write() -> None:
        asked.set()
        assert renewed.wait(20)

    told.saver.may_write = may_write
    told.write(3)
    assert asked.wait(20)
    assert not partial_directory(tmp_path, 3).exists()
    renewed.set()
    assert told.saver.wait()
    assert told.written.keys() == {3}


@pytest.mark.parametrize("num_asked", [1, 2], ids=["before it is written", "before it is named"])
def test_a_part_of_a_worker_that_is_to_stop_is_given_up(told, tmp_path, num_asked):
    asked = []

    def may_write() -> None:
        asked.append(1)
        if len(asked) >= num_asked:
            raise Stopped("the run is over")

    told.saver.may_write = may_write
    told.write(3)
    assert told.saver.wait()
    assert not told.written
    assert not (partial_directory(tmp_path, 3) / NAME).exists()
    assert not told.saver.has(3)


class Live:
    """A state whose tensors the next update changes."""

    def __init__(self) -> None:
        self.weight = torch.ones(3)

    def live_tensors(self):
        return {"0.weight": self.weight}

    def tensors(self):
        return {"0.weight": self.weight.clone()}


def slow_to_write(monkeypatch):
    """Until told to go on."""
    write_part, go_on = saving.write_part, threading.Event()

    def write(folder, tensors):
        assert go_on.wait(20)
        return write_part(folder, tensors)

    monkeypatch.setattr(saving, "write_part", write)
    return go_on


def save(told, version, state):
    told.saver.save(version, state, lambda w: told.written.update({version: w}))


def test_r6_a_large_state_is_not_copied_and_the_next_update_waits_for_it(
    told, tmp_path, monkeypatch
):
    monkeypatch.setattr(saving, "COPIED_BYTES", 0)
    go_on, state = slow_to_write(monkeypatch), Live()
    save(told, 3, state)
    threading.Timer(0.2, go_on.set).start()
    told.saver.before_update()
    assert go_on.is_set()
    state.weight.zero_()
    assert told.written[3].hashes.keys() == {"0"}
    [file] = (partial_directory(tmp_path, 3) / NAME).glob("*.safetensors")
    assert load_file(file)["0.weight"].tolist() == [1, 1, 1]


def test_r6_a_large_state_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "COPIED_BYTES", 0)
    monkeypatch.setattr(saving, "PAUSES_S", ())
    told, go_on, state = Told(tmp_path, limit_s=0.05), slow_to_write(monkeypatch), Live()
    save(told, 3, state)
    told.saver.before_update()  # training goes on
    state.weight.zero_()
    go_on.set()
    assert told.saver.wait(20)
    assert "took too long" in told.failed[3]
    assert not told.written


def test_r6_nobody_waits_for_a_small_state(told, monkeypatch):
    go_on, state = slow_to_write(monkeypatch), Live()
    save(told, 3, state)
    told.saver.before_update()
    assert not told.written
    go_on.set()
    assert told.saver.wait()
    assert told.written
