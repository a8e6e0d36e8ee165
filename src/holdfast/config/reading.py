"""Settings from plain values and from text: typed by their key, refused by name."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from holdfast.config.checks import require
from holdfast.config.run import RunConfig
from holdfast.errors import Argument, ConfigError

_RENAMED = {  # since 0.2.0
    "workers.silence_limit_s": "workers.heartbeat_timeout_s",
    "control.host": "network.listen",
}

_WORDS = tuple[str, ...]


def known_keys() -> list[str]:
    return [f"{s.name}.{f.name}" for s in fields(RunConfig) for f in fields(_section(s.name))]


def known_settings(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of a run of any version, by their names of today; those that are not known are left out."""
    known = set(known_keys())
    found: dict[str, dict[str, Any]] = {}
    for section, settings in values.items():
        for name, value in settings.items():
            key = f"{section}.{name}"
            now_section, _, now_name = _RENAMED.get(key, key).partition(".")
            if f"{now_section}.{now_name}" in known:
                found.setdefault(now_section, {})[now_name] = value
    return found


def config_from(values: Mapping[str, Any]) -> RunConfig:
    """A checked RunConfig from nested plain values, e.g. parsed TOML."""
    sections: dict[str, Any] = {}
    for name, section_values in values.items():
        if name not in {f.name for f in fields(RunConfig)}:
            raise ConfigError(f"{name}: unknown section; known are {', '.join(_section_names())}")
        if not isinstance(section_values, Mapping):
            raise ConfigError(
                f"{name}={section_values!r}: is a section; set {name}.<field> instead"
            )
        sections[name] = _build_section(name, section_values)
    return RunConfig(**sections)


def _section_names() -> list[str]:
    return [f.name for f in fields(RunConfig)]


@cache
def _section(name: str) -> type[Any]:
    section = get_type_hints(RunConfig)[name]
    assert is_dataclass(section)
    assert isinstance(section, type)
    return section


@cache
def _hints(name: str) -> dict[str, Any]:
    """Of the fields of a section."""
    return get_type_hints(_section(name))


def _build_section(name: str, values: Mapping[str, Any]) -> object:
    section = _section(name)
    hints = _hints(name)
    for key in values:
        if key not in hints:
            raise _unknown(f"{name}.{key}", [f"{name}.{field_name}" for field_name in hints])
    return section(**{key: typed(f"{name}.{key}", v, hints[key]) for key, v in values.items()})


def _unknown(key: str, known: Iterable[str]) -> ConfigError:
    if key in _RENAMED:
        return ConfigError(f"{key}: unknown setting; its name is {_RENAMED[key]} now")
    return ConfigError(f"{key}: unknown setting; known are {', '.join(known)}")


def typed(key: str, value: object, hint: Any) -> object:
    """``value`` as ``hint`` wants it, or a ConfigError with key, value and what is expected."""
    if get_origin(hint) is Literal:
        require(value in get_args(hint), key, value, f"must be {' or '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        good = isinstance(value, list | tuple) and all(type(item) is kind for item in value)
        wanted = {
            int: "a list of whole numbers, e.g. [2, 4]",
            str: 'a list of texts, e.g. ["--lr", "3e-4"]',
        }[kind]
        require(good, key, value, f"must be {wanted}")
        assert isinstance(value, list | tuple)
        return tuple(value)
    if hint is float and type(value) is int:
        return float(value)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    require(type(value) is hint, key, repr(value), f"must be {wanted}")
    return value


def set_value(values: dict[str, Any], key: str, value: object) -> None:
    """Set ``section.field`` in nested plain values."""
    section, dot, name = key.partition(".")
    if not dot or not name:
        raise ConfigError(f"{key}: a setting is named section.field, e.g. optimizer.mode")
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{section}={inner!r}: is a section; set {section}.<field> instead")
    inner[name] = value


def parse_assignment(text: str) -> tuple[str, object]:
    """``optimizer.mode=global`` -> ("optimizer.mode", "global"), the value typed by its key."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError(Argument("set", text), ": expected section.field=value")
    section, _, name = key.partition(".")
    if section not in _section_names() or name not in _hints(section):
        raise _unknown(key, known_keys())
    return key, _from_text(key, raw.strip(), _hints(section)[name])


def _from_text(key: str, raw: str, hint: Any) -> object:
    readers: dict[Any, Any] = {
        bool: lambda: {"true": True, "false": False}[raw.lower()],
        int: lambda: int(raw),
        float: lambda: float(raw),
        tuple: lambda: [int(part) for part in raw.strip("[]()").split(",") if part.strip()],
        _WORDS: lambda: shlex.split(raw),
    }
    origin = hint if hint == _WORDS else get_origin(hint) or hint
    if origin not in readers:
        return raw
    try:
        return readers[origin]()
    except (ValueError, KeyError):
        return typed(key, raw, hint)
