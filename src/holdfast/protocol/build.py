"""Plain values, as JSON has them, turned into what a type hint says. Nothing else gets through.

Knows lists, dicts, rows (a NamedTuple travels as a list of its fields), unions with None, and
the checks of ``fields.py``. A key that is a number travels as text, as JSON wants it.
"""

import re
import reprlib
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.config import RunConfig, config_from
from holdfast.errors import ConfigError
from holdfast.protocol.columns import rows_are_good
from holdfast.protocol.fields import PATH, Bounds

Build = Callable[[Any], Any]
_KEY = re.compile(r"0|-?[1-9][0-9]{0,15}")  # one spelling for each number


class Misfit(Exception):
    """``path``: where in the value, from the outside inwards."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(expected)
        self.path, self.value, self.expected = "", value, expected

    def within(self, where: str) -> "Misfit":
        self.path = f"{where}{self.path}"
        return self

    def __str__(self) -> str:
        return f"{self.path}={reprlib.repr(self.value)}: expected {self.expected}"


@cache
def builder(hint: Any) -> Build:
    """What makes a value of this type, or raises Misfit."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = _whole_bounds(hint)
        return _checked(builder(inner[0]), inner[1:]) if bounds is None else _within(bounds)
    if origin is list:
        one_by_one, bounds = _list_of(builder(inner[0])), _whole_bounds(inner[0])
        if bounds is not None:
            return _numbers(bounds, one_by_one)
        return _rows(inner[0], one_by_one) if hasattr(inner[0], "_fields") else one_by_one
    if origin is dict:
        return _dict_of(_key(inner[0]), builder(inner[1]))
    if origin in (UnionType, Union):
        return _optional(inner)
    if origin is Literal:
        return _one_of(inner)
    if hasattr(hint, "_fields"):
        return _row(hint)
    return _PLAIN[hint]


def _checked(build: Build, checks: tuple[Any, ...]) -> Build:
    def make(value: object) -> object:
        built = build(value)
        for check in checks:
            if not check.fits(built):
                raise Misfit(value, check.what)
        return built

    return make


def _whole_bounds(hint: Any) -> Bounds | None:
    """Of a whole number with nothing else to check: most of what is read are such ones."""
    match get_args(hint) if get_origin(hint) is Annotated else ():
        case (base, Bounds() as bounds) if base is int and bounds.kind is int:
            return bounds
    return None


def _within(bounds: Bounds) -> Build:
    least, most, whole = bounds.least, bounds.most, _PLAIN[int]

    def make(value: Any) -> object:
        if type(value) is int and least <= value <= most:
            return value
        raise Misfit(whole(value), bounds.what)

    return make


def _numbers(bounds: Bounds, one_by_one: Build) -> Build:
    """All at once; if some are bad, one by one finds out which."""
    least, most, whole = bounds.least, bounds.most, {int}

    def make(value: Any) -> object:
        are_whole = type(value) is list and set(map(type, value)) == whole
        if are_whole and least <= min(value) and max(value) <= most:
            return value.copy()
        return one_by_one(value)

    return make


def _list_of(build: Build) -> Build:
    def make(value: object) -> object:
        if type(value) is not list:
            raise Misfit(value, "a list")
        made: list[object] = []
        try:
            for item in value:
                made.append(build(item))  # its length says which one was bad
        except Misfit as why:
            raise why.within(f"[{len(made)}]") from None
        return made

    return make


def _rows(cls: Any, one_by_one: Build) -> Build:
    are_good = rows_are_good(cls)
    if are_good is None:
        return one_by_one

    def make(value: object) -> object:
        if type(value) is list and value and are_good(value):
            return list(map(cls._make, value))
        return one_by_one(value)

    return make


def _dict_of(key: Build, build: Build) -> Build:
    def make(value: object) -> object:
        if type(value) is not dict:
            raise Misfit(value, "an object")
        made = {}
        for name, item in value.items():
            made_key = key(name)
            try:
                made[made_key] = build(item)
            except Misfit as why:
                raise why.within(f"[{reprlib.repr(name)}]") from None
        return made

    return make


def _key(hint: Any) -> Build:
    build = builder(hint)
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if base is not int:
        return build

    def make(name: str) -> object:
        if _KEY.fullmatch(name) is None:
            raise Misfit(name, "a whole number as a key")
        return build(int(name))

    return make


def _optional(options: tuple[Any, ...]) -> Build:
    [only] = [option for option in options if option is not type(None)]
    build = builder(only)
    return lambda value: None if value is None else build(value)


def _one_of(options: tuple[object, ...]) -> Build:
    def make(value: object) -> object:
        if type(value) is not str or value not in options:
            raise Misfit(value, " or ".join(map(str, options)))
        return value

    return make


def _row(cls: Any) -> Build:
    hints = get_type_hints(cls, include_extras=True)
    columns = [(name, builder(hints[name])) for name in cls._fields]
    what = f"a row of {', '.join(cls._fields)}"

    def make(value: object) -> object:
        if type(value) is not list or len(value) != len(columns):
            raise Misfit(value, what)
        made: list[object] = []
        try:
            for (_, build), item in zip(columns, value, strict=True):
                made.append(build(item))
        except Misfit as why:
            raise why.within(f".{columns[len(made)][0]}") from None
        return cls(*made)

    return make


def _of_type(kind: type, what: str) -> Build:
    def make(value: object) -> object:
        if type(value) is not kind:
            raise Misfit(value, what)
        return value

    return make


def _number(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise Misfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise Misfit(value, "a number that is not so large") from None


def _text(value: object) -> str:
    """What is no Unicode (JSON can spell it) could not be written to a file or a screen later."""
    if type(value) is not str:
        raise Misfit(value, "text")
    return value.encode("utf-8", "replace").decode()


def _config(value: object) -> RunConfig:
    if type(value) is not dict:
        raise Misfit(value, "settings by section")
    try:
        config = config_from(value)
    except ConfigError as why:
        raise Misfit(value, f"settings that can be run ({why})") from why
    for name in ("log_dir", "log_mirror"):
        place = getattr(config.recovery, name)
        if place and not PATH.fits(place):
            raise Misfit(place, PATH.what).within(f".recovery.{name}")
    return config


_PLAIN: dict[Any, Build] = {
    int: _of_type(int, "a whole number"),
    bool: _of_type(bool, "true or false"),
    float: _number,
    str: _text,
    RunConfig: _config,
}
