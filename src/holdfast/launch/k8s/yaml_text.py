"""Plain values as YAML, in block style: as much of it as manifests need."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Everything else is quoted: no, 1e3 and 0x1f are no text to a reader of YAML.
_PLAIN = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./@-]|:(?! |$))*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


def documents(*parts: tuple[str, Mapping[str, Any]]) -> str:
    """Each with its comment in front."""
    return "".join(
        "---\n" + "".join(f"# {line}\n" for line in comment.splitlines()) + _lines(value, 0)
        for comment, value in parts
    )


def _lines(value: Any, indent: int) -> str:
    space = " " * indent
    if isinstance(value, Mapping):
        return "".join(
            f"{space}{_text(str(key))}:{_after(item, indent)}" for key, item in value.items()
        )
    return "".join(f"{space}-{_item(item, indent)}" for item in value)


def _after(value: Any, indent: int) -> str:
    """What follows a key."""
    if isinstance(value, str) and "\n" in value:
        return _block(value, indent + 2)
    if _is_empty(value) or not isinstance(value, Mapping | list | tuple):
        return f" {_scalar(value)}\n"
    return "\n" + _lines(value, indent + 2)


def _item(value: Any, indent: int) -> str:
    """What follows a dash."""
    if isinstance(value, str) and "\n" in value:
        return _block(value, indent + 2)
    if _is_empty(value) or not isinstance(value, Mapping | list | tuple):
        return f" {_scalar(value)}\n"
    return f" {_lines(value, indent + 2).lstrip(' ')}"


def _block(text: str, indent: int) -> str:
    """Line by line, as it is; the indentation is said, as the text may begin with spaces."""
    is_odd = any(not letter.isprintable() and letter != "\n" for letter in text)
    if is_odd or text.endswith("\n\n"):
        return f" {json.dumps(text)}\n"
    keep = "" if text.endswith("\n") else "-"
    lines = text.removesuffix("\n").split("\n")
    return f" |2{keep}\n" + "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value)  # numbers, truth and what is empty are written alike


def _text(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text)


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and not value
