"""Numba where there is one, and a plain twin of every compiled function.

The twins are the same source, uncompiled: for machines without Numba, and to prove that
compiling changes nothing.
"""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

try:
    from numba import njit
except ImportError:  # then everything runs as plain Python
    njit = None  # type: ignore[assignment]

HAS_NUMBA = njit is not None
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Decorator: compiled at first use, kept on disk, run without the interpreter's lock."""
    if not HAS_NUMBA:
        return function
    made: Any = njit(cache=True, nogil=True)(function)
    return made  # type: ignore[no-any-return]


def plain_twins(module: ModuleType) -> dict[str, Any]:
    """The module's names, with every compiled function uncompiled and calling its like."""
    names = dict(vars(module))
    for name, value in vars(module).items():
        source = getattr(value, "py_func", None)
        if source is not None:
            names[name] = FunctionType(source.__code__, names, name)
    return names
