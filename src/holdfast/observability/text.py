"""Numbers, lists and lines as people read them. Knows no events."""

import textwrap
from collections.abc import Sequence

WIDTH = 100  # columns of a line that is not a command or a path
INDENT = "    "  # of what belongs to the line before


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


def folded(text: str, indent: str = "") -> list[str]:
    """Lines of at most ``WIDTH`` columns, words kept whole; all but the first are indented."""
    return [
        row
        for number, part in enumerate(text.split("\n"))
        for row in textwrap.wrap(
            part,
            WIDTH,
            initial_indent=indent if not number else INDENT,
            subsequent_indent=indent + INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
