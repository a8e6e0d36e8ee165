"""The line of the user's code that an error comes from."""

import sysconfig
import traceback
from pathlib import Path

import holdfast

_LIBRARIES = [
    *(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")),
    Path(holdfast.__file__).parent,
]


def own_line(why: BaseException) -> str:
    """`` at model.py:12 (x = self.f(x))`` for the innermost line that is of no library."""
    for frame in reversed(traceback.extract_tb(why.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(place) for place in _LIBRARIES):
            return f" at {file}:{frame.lineno} ({frame.line})"
    return ""
