"""What the help of every sub-command ends with: examples to copy, and exit codes."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

_EXIT_CODES = {
    "0": "done",
    "1": "failed; the last line says why",
    "2": "bad input; the last line says what to change",
    "130": "interrupted",
}


def parts(
    examples: Sequence[str], *more: str, codes: Mapping[str, str] = _EXIT_CODES
) -> dict[str, Any]:
    """Of ``add_parser``. ``more``: sections between the examples and the exit codes."""
    shown = "\n".join(f"  {example}" for example in examples)
    width = max(map(len, codes))
    meanings = "\n".join(f"  {code:{width}}  {text}" for code, text in codes.items())
    sections = [f"examples:\n{shown}", *more, f"exit codes:\n{meanings}"]
    return {
        "epilog": "\n\n".join(sections),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
