"""What the machine is out of for a while is tried again; what is wrong for good is told at once."""

import errno

import pytest

from holdfast.host import scarce
from holdfast.host.scarce import is_scarcity, patiently


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(scarce, "PAUSES_S", (0.0, 0.0, 0.0))


class Failing:
    """Raises so many times, then gives its number of calls."""

    def __init__(self, why: Exception, number: int) -> None:
        self.why, self.left, self.num_calls = why, number, 0

    def __call__(self) -> int:
        self.num_calls += 1
        self.left -= 1
        if self.left >= 0:
            raise self.why
        return self.num_calls


SCARCE = [
    OSError(errno.EMFILE, "Too many open files"),
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("why", SCARCE, ids=repr)
def test_what_passes_is_waited_for(why) -> None:
    assert patiently(Failing(why, 3)) == 4


@pytest.mark.parametrize("why", SCARCE, ids=repr)
def test_what_does_not_pass_is_raised_in_the_end(why) -> None:
    failing = Failing(why, 100)
    with pytest.raises(type(why)):
        patiently(failing)
    assert failing.num_calls == 4


def test_what_is_wrong_for_good_is_raised_at_once() -> None:
    failing = Failing(FileNotFoundError(errno.ENOENT, "No such file or directory"), 1)
    with pytest.raises(FileNotFoundError):
        patiently(failing)
    assert failing.num_calls == 1


def test_only_descriptors_processes_and_memory_are_scarce() -> None:
    assert [is_scarcity(why) for why in SCARCE] == [True, True, True, False]
    assert not is_scarcity(OSError(errno.ENOSPC, "No space left on device"))
