"""A launcher of many workers raises its own limit of open files, or says which one is too low."""

import resource

import pytest

from holdfast.errors import ConfigError
from holdfast.host import descriptors


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of a process that may have 1,024 open files, and raise that to 4,096."""
    set_to: list[tuple[int, int]] = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: set_to[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: set_to.append(limits))
    return set_to


def test_few_workers_change_nothing(limits):
    descriptors.allow_connections(64)
    assert limits == [(1024, 4096)]


def test_for_many_the_soft_limit_is_raised(limits):
    descriptors.allow_connections(1024)
    assert limits[-1] == (1280, 4096)


def test_too_many_for_the_hard_limit_are_refused_with_both_numbers(limits):
    with pytest.raises(ConfigError, match="4352 open files in the launcher, and its limit is 4096"):
        descriptors.allow_connections(4096)


def test_no_limit_is_no_limit(limits):
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    descriptors.allow_connections(1 << 20)
    assert len(limits) == 2
