"""Numbers, lists and lines as people read them. Knows no events."""

import re
import textwrap
from collections.abc import Sequence

WIDTH = 100  # columns of a line that is not a command or a path
INDENT = "    "  # of what belongs to the line before
_COMMAND = re.compile("(?<=:) (?=holdfast [a-z-]+ -)")  # before the one at the end of a text


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def duration(seconds: float) -> str:
    """With two or three digits that count."""
    if seconds < 0.9995:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def size(num_bytes: int) -> str:
    """In the largest decimal unit that leaves a number of 1 or more."""
    number, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{num_bytes} B" if unit == "B" else f"{number:.1f} {unit}"


def folded(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` columns, words kept whole; all but the first are indented.

    A command at the end has a line of its own, however long, so that it can be copied.
    """
    text, *command = _COMMAND.split(text, maxsplit=1)
    first, *others = text.split("\n")
    lines = _wrapped(first, width, indent, indent + INDENT)
    lines += [line for part in others for line in _wrapped(part, width, INDENT, indent + INDENT)]
    return lines + [f"{indent}{INDENT}{part}" for part in command]


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
