"""Which cases run every time, and which are left to ``make test-all``."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def first(num: int, cases: Iterable[Any]) -> list[Any]:
    """The first of some cases every time, the others as wide tests."""
    cases = list(cases)
    return [*cases[:num], *map(wide, cases[num:])]


def first_two(num: int, more: int, cases: Iterable[Any]) -> list[Any]:
    """The first every time, then some as wide tests, the others left to ``make test-cluster``."""
    cases = list(cases)
    rest = [pytest.param(*_values(case), marks=pytest.mark.cluster) for case in cases[num + more :]]
    return [*first(num, cases[: num + more]), *rest]


def every(num: int, cases: Iterable[Any]) -> list[Any]:
    """Each ``num``-th case every time, from the first on: a fair sample of a shuffled list."""
    return [wide(case) if at % num else case for at, case in enumerate(cases)]


def where(chosen: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Those that are chosen every time, the others as wide tests."""
    return [case if chosen(case) else wide(case) for case in cases]


def wide(case: Any) -> Any:
    return pytest.param(*_values(case), marks=pytest.mark.wide)


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
