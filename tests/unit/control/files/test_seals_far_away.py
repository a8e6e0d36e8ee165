"""A seal that takes its time: what counts as whole meanwhile, and after all have gone back."""

import threading
import time

import pytest

from holdfast.config import config_from
from holdfast.control.effects import SealCheckpoint, SealFailed
from holdfast.control.io.sealing import SealDone, Seals
from holdfast.control.state.saved import Saved
from holdfast.control.state.settings import Settings

LIMIT_S = 60.0


@pytest.fixture
def saved():
    config = config_from({"checkpoint": {"dir": "s3://bucket/run"}})
    return Saved(Settings(config, "/runs/x", None))


def test_the_run_goes_back_only_to_what_is_known_to_be_whole(saved):
    saved.seal(2)
    assert saved.start == ("", 0)
    assert saved.newest == 2
    assert saved.confirm(2)
    assert saved.start == ("s3://bucket/run/checkpoints/step-00000002", 2)
    saved.seal(4)
    assert saved.unseal(4)
    assert saved.start[1] == saved.newest == 2


def test_what_is_sealed_after_all_have_gone_back_changes_nothing(saved):
    saved.seal(2)
    saved.begin_anew()
    assert not saved.confirm(2)
    assert not saved.unseal(2)
    assert saved.start == ("", 0)


def taken(seals: Seals):
    deadline_s = time.monotonic() + LIMIT_S
    while not (told := seals.take()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return told


def test_nobody_waits_for_a_seal_and_one_without_an_answer_is_given_up():
    effect, goes = SealCheckpoint(2, (), 0.0), threading.Event()

    def seal(effect):
        assert goes.wait(LIMIT_S)
        return "there"

    seals = Seals(LIMIT_S, at_once=False)
    seals.begin(effect, seal)
    assert seals.take() == []
    goes.set()
    assert taken(seals) == [SealDone(effect, "there")]
    goes.clear()
    seals = Seals(0.05, at_once=False)
    seals.begin(effect, seal)
    [failed] = taken(seals)
    assert isinstance(failed, SealFailed)
    assert str(failed) == "no answer within 0.05 s"
    goes.set()


def test_a_mistake_of_ours_costs_a_checkpoint_and_no_run():
    seals = Seals(LIMIT_S, at_once=False)
    seals.begin(SealCheckpoint(2, (), 0.0), lambda effect: {}["nothing"])
    [failed] = taken(seals)
    assert str(failed) == "KeyError('nothing')"
