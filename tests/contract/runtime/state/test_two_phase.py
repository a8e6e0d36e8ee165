"""Checkpoints in two phases: what is saved is the state as it was, whatever happens meanwhile."""

import threading
import time

import pytest
import torch

from helpers.harness.transport_harness import Background
from helpers.scarce import refuse_threads
from holdfast.baselines.two_phase import TwoPhaseSaver
from holdfast.errors import HoldfastError
from holdfast.protocol.records import SaveRule
from holdfast.runtime.state import saving
from holdfast.runtime.state.saving import SaveTimes, StageSaver, Written
from holdfast.storage.local_store import LocalStore

LIMIT_S = 60.0
NAME = "stage-0.0a1b2c3d"


def unexpected(version, reason):
    raise AssertionError(f"version {version}: {reason}")


class SlowTensor:
    """Its copy is ready when a test says so."""

    nbytes = 8

    def __init__(self) -> None:
        self.value = 1.0
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def clone(self) -> torch.Tensor:
        self.begun.set()
        assert self.go_on.wait(LIMIT_S)
        return torch.tensor(self.value)


@pytest.fixture
def written(monkeypatch):
    parts = []
    monkeypatch.setattr(saving, "write_part", lambda path, tensors: parts.append(tensors) or {})
    return parts


def test_an_update_waits_until_the_copy_is_taken_and_not_for_the_writing(tmp_path, monkeypatch):
    on_disk = threading.Event()
    parts = []

    def write_part(path, tensors):
        assert on_disk.wait(LIMIT_S)
        parts.append(tensors)
        return {}

    monkeypatch.setattr(saving, "write_part", write_part)
    saver, slow = TwoPhaseSaver(LocalStore(tmp_path), NAME, LIMIT_S, unexpected), SlowTensor()
    saver.write_live(4, {"0.weight": slow}, lambda _: None)
    assert slow.begun.wait(LIMIT_S)

    def update():
        saver.before_update()
        slow.value = 2.0

    updating = Background(update).wait_until_blocked()  # the copy is not taken yet
    assert slow.value == 1.0
    slow.go_on.set()
    updating.result()  # writing is not waited for
    assert slow.value == 2.0
    on_disk.set()
    saver.wait()
    assert parts == [{"0.weight": 1.0}]
    assert saver.stalled_s > 0


def test_the_next_checkpoint_waits_until_the_one_before_is_written(tmp_path, written):
    saver, slow = TwoPhaseSaver(LocalStore(tmp_path), NAME, LIMIT_S, unexpected), SlowTensor()
    saver.write_live(1, {"0.weight": slow}, lambda _: None)
    threading.Timer(0.05, slow.go_on.set).start()
    saver.write_live(2, {"0.weight": torch.zeros(2)}, lambda _: None)
    assert written[0] == {"0.weight": 1.0}
    saver.wait()
    assert len(written) == 2


def test_a_copy_that_fails_lets_updates_go_on_and_is_told(tmp_path, written):
    class Broken:
        nbytes = 0

        def clone(self):
            raise RuntimeError("out of memory")

    failed: dict[int, str] = {}
    saver = TwoPhaseSaver(LocalStore(tmp_path), NAME, LIMIT_S, failed.__setitem__)
    saver.write_live(3, {"0.weight": Broken()}, lambda _: None)
    saver.before_update()
    assert saver.wait()
    assert failed == {3: "out of memory"}


def test_a_copy_that_never_ends_is_an_error_in_the_end(tmp_path, written):
    saver, slow = TwoPhaseSaver(LocalStore(tmp_path), NAME, 0.05, unexpected), SlowTensor()
    saver.write_live(3, {"0.weight": slow}, lambda _: None)
    with pytest.raises(HoldfastError, match="not copied after"):
        saver.before_update()
    slow.go_on.set()
    saver.wait()


def test_the_time_of_the_copy_and_of_the_whole_are_told(tmp_path, written):
    told: list[Written] = []
    saver, slow = TwoPhaseSaver(LocalStore(tmp_path), NAME, LIMIT_S, unexpected), SlowTensor()
    saver.write_live(3, {"0.weight": slow}, told.append)
    assert slow.begun.wait(LIMIT_S)
    time.sleep(0.02)
    slow.go_on.set()
    saver.wait()
    [one] = told
    assert 0.02 <= one.copy_s <= one.took_s


def test_a_saver_of_one_phase_holds_no_update_up(tmp_path, monkeypatch):
    on_disk = threading.Event()
    monkeypatch.setattr(saving, "write_part", lambda *_: on_disk.wait(LIMIT_S) and {})
    saver = StageSaver(LocalStore(tmp_path), NAME, LIMIT_S, unexpected)
    saver.write(3, {"0.weight": torch.zeros(2)}, lambda _: None)
    saver.before_update()
    on_disk.set()
    saver.wait()


# --- which versions are saved ---


def test_versions_are_saved_at_multiples_until_a_rule_says_otherwise() -> None:
    times = SaveTimes(5)
    assert [v for v in range(1, 21) if times.is_due(v)] == [5, 10, 15, 20]
    times.change([SaveRule(12, 3)])
    assert [v for v in range(1, 21) if times.is_due(v)] == [5, 10, 12, 15, 18]
    times.change([SaveRule(12, 3), SaveRule(17, 5)])
    assert [v for v in range(1, 25) if times.is_due(v)] == [5, 10, 12, 15, 17, 22]


def test_rules_that_come_late_change_nothing() -> None:
    times = SaveTimes(5)
    times.change([SaveRule(12, 3), SaveRule(17, 5)])
    times.change([SaveRule(12, 3)])
    times.change([])
    assert [v for v in range(16, 25) if times.is_due(v)] == [17, 22]


def test_one_version_more_can_be_saved_early_and_whenever_it_is_asked_for() -> None:
    times = SaveTimes(5, 1)
    assert [v for v in range(1, 11) if times.is_due(v)] == [1, 5, 10]
    times.once(7)
    assert [v for v in range(1, 11) if times.is_due(v)] == [1, 5, 7, 10]
    assert not any(SaveTimes(0, 1).is_due(version) for version in range(50))


def test_no_interval_means_no_checkpoint() -> None:
    assert not any(SaveTimes(0).is_due(version) for version in range(50))


def test_an_update_does_not_wait_for_a_copy_that_no_thread_takes(tmp_path, monkeypatch, written):
    failed: dict[int, str] = {}
    refused = refuse_threads(monkeypatch, "checkpoint", 1)
    saver = TwoPhaseSaver(LocalStore(tmp_path), NAME, LIMIT_S, failed.__setitem__)
    saver.write_live(4, {"0.weight": torch.ones(3)}, lambda _: None)
    saver.before_update()
    assert refused == ["checkpoint"]
    assert (saver.stalled_s, failed.keys(), written) == (0.0, {4}, [])
