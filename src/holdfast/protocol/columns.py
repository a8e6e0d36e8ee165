"""Many rows of one kind, looked at column by column: a report has hundreds of them.

Says only whether all of them are surely good; if not, they are looked at one by one, which finds
out what is wrong with which, or that it was good after all.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from holdfast.names import Form
from holdfast.protocol.fields import Bounds, Check

Column = Sequence[Any]
IsGood = Callable[[Column], bool]
_MOST_KNOWN = 1 << 17  # texts of one form: whoever makes up new ones must not fill the memory


def rows_are_good(cls: Any) -> Callable[[list[Any]], bool] | None:
    """Whether a list of lists is surely one of such rows, as they are; None: not to be told."""
    hints = get_type_hints(cls, include_extras=True)
    checks = [_of(hints[name]) for name in cls._fields]
    width = len(checks)
    known = [check for check in checks if check is not None]
    if len(known) < width:
        return None

    def are_good(rows: list[Any]) -> bool:
        if set(map(type, rows)) != {list} or set(map(len, rows)) != {width}:
            return False
        columns = zip(*rows, strict=True)
        return all(check(column) for check, column in zip(known, columns, strict=True))

    return are_good


def _of(hint: Any) -> IsGood | None:
    if hint in (float, bool):
        return _all_of(hint)
    if get_origin(hint) is Literal:
        return _known_texts(lambda text: text in get_args(hint))
    if get_origin(hint) is not Annotated:
        return None
    base, *rules = get_args(hint)
    if len(rules) != 1:
        return None
    [rule] = rules
    if base is str and isinstance(rule, Form):
        return _known_texts(rule.fits)
    if base is str and isinstance(rule, Check):
        return _known_texts(lambda text: text.isascii() and rule.fits(text))
    if base in (int, float) and isinstance(rule, Bounds):
        return _numbers(base, rule)
    return None


def _all_of(kind: type) -> IsGood:
    kinds = {kind}
    return lambda column: set(map(type, column)) == kinds


def _numbers(kind: type, bounds: Bounds) -> IsGood:
    kinds = {kind}

    def are_good(column: Column) -> bool:
        if set(map(type, column)) != kinds or math.isnan(sum(column)):
            return False  # the least of some numbers and NaN is anything
        return bool(bounds.least <= min(column) and max(column) <= bounds.most)

    return are_good


def _known_texts(fits: Callable[[str], bool]) -> IsGood:
    known: set[str] = set()

    def are_good(column: Column) -> bool:
        if set(map(type, column)) != {str}:
            return False
        if known.issuperset(column):
            return True
        if not all(map(fits, column)):
            return False
        if len(known) < _MOST_KNOWN:
            known.update(column)
        return True

    return are_good
