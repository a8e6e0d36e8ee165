"""A phase that may only change as a table allows. The tables are where the phases are."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from holdfast.errors import HoldfastError

_Phase = TypeVar("_Phase", bound=Enum)


class IllegalTransition(HoldfastError):
    """A mistake of ours, never of a user."""

    def __init__(self, what: str, before: Enum, after: Enum) -> None:
        super().__init__(f"{what} cannot go from {before.name} to {after.name}")
        self.before, self.after = before, after


def moved(
    what: str, table: Mapping[_Phase, frozenset[_Phase]], before: _Phase, after: _Phase
) -> _Phase:
    """``after``, if the table has it among those that may follow."""
    if after not in table[before]:
        raise IllegalTransition(what, before, after)
    return after
