"""Constants of a policy: a value, where it comes from, and how a user changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import Argument, ConfigError

TINY = 1e-6  # what is divided by must be above this
_MOST = 1e15


@dataclass(frozen=True)
class PolicyConstants:
    """Base of the tables of constants: every field is a number with its source."""


_Table = TypeVar("_Table", bound=PolicyConstants)


class ConstantRow(NamedTuple):
    name: str
    value: float
    source: str


def constant(value: float, source: str, *, above: float | None = None) -> Any:
    """Typed as the field it becomes. ``above``: None is 0 or more."""
    return field(default=value, metadata={"source": source, "above": above})


def listed(table: PolicyConstants) -> tuple[ConstantRow, ...]:
    return tuple(
        ConstantRow(each.name, getattr(table, each.name), each.metadata["source"])
        for each in fields(table)
    )


def changed(policy: str, table: _Table, values: Mapping[str, float]) -> _Table:
    known = {each.name: each.metadata["above"] for each in fields(table)}
    for name, value in values.items():
        if name not in known:
            expected = ", ".join(known) or "none: it has no constants"
            raise ConfigError(
                Argument("constant", f"{policy}.{name}"), f": expected one of {expected}"
            )
        above = known[name]
        if not (0 <= value <= _MOST and (above is None or value > above)):
            given = Argument("constant", f"{policy}.{name}={value:g}")
            least = ">= 0" if above is None else f"above {above:g}"
            raise ConfigError(given, f": expected a number {least} and at most {_MOST:g}")
    return replace(table, **values)
