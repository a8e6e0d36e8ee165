"""Where a coordinator may be is asked at once, in the order of the places."""

import threading

import pytest

from helpers.scarce import refuse_threads
from holdfast.auth.handshake import WORKER_ROLE
from holdfast.errors import HoldfastError
from holdfast.protocol import successors as looks
from holdfast.protocol.spec import Access
from holdfast.protocol.successors import GivenUp, Successors

LIMIT_S = 30.0
ACCESS = Access("10.0.0.1", 1, bytes(32), 3, more=("10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"))


class Answered:
    """A connection that has told who is there."""

    def close(self):
        pass


@pytest.fixture
def looking(monkeypatch):
    """``generations``: by host; who is not there does not answer."""

    def make(generations):
        met = threading.Barrier(4)
        connected = []

        def connect(access, role, *_, **more):
            if role == WORKER_ROLE:
                connected.append((access.host, generations[access.host]))
                return connected[-1], access.generation
            met.wait(LIMIT_S)  # one after the other would never meet
            if access.host not in generations:
                raise HoldfastError("no answer")
            return Answered(), generations[access.host]

        monkeypatch.setattr(looks, "connect", connect)
        return Successors(ACCESS, WORKER_ROLE, "0.0", "", LIMIT_S, LIMIT_S), met

    return make


def test_all_places_are_asked_at_once_and_no_thread_stays(looking):
    before = set(threading.enumerate())  # one of another test may end meanwhile
    successors, _ = looking({"10.0.0.2": 2, "10.0.0.4": 4})
    assert successors.look() == ("10.0.0.4", 4)
    assert set(threading.enumerate()) <= before


def test_nobody_is_there(looking):
    successors, _ = looking({})
    assert successors.look() is None


def test_one_of_ours_is_there(looking):
    successors, _ = looking({"10.0.0.1": 3})
    with pytest.raises(GivenUp):
        successors.look()
    assert successors.look(is_alive=True) is None


def test_without_threads_they_are_asked_one_after_the_other(looking, monkeypatch):
    successors, met = looking({"10.0.0.3": 5})
    monkeypatch.setattr(met, "wait", lambda limit_s: 0)
    refused = refuse_threads(monkeypatch, "look", 2)
    assert successors.look() == ("10.0.0.3", 5)
    assert refused == ["look", "look"]
