"""Numba where there is one, and a plain twin of every compiled function.

Numba takes a second to load: that is paid by whoever asks for the first plan, not by whoever
imports the planner. The twins are the same source, uncompiled: for machines without Numba, and
to prove that compiling changes nothing.
"""

import functools
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_making = threading.RLock()


@functools.cache
def has_numba() -> bool:
    """Loads it."""
    try:
        import numba  # noqa: F401
    except ImportError:  # then everything runs as plain Python
        return False
    return True


def is_plain(wanted: bool | None) -> bool:
    """Whether plain Python is to run; None: if there is nothing else."""
    return not has_numba() if wanted is None else wanted


def compiled(function: Function) -> Function:
    """Decorator: compiled at first use, kept on disk, run without the interpreter's lock."""
    plain: Any = function
    made: Any = _Uncompiled(plain)
    return made  # type: ignore[no-any-return]


class _Uncompiled:
    """Stands for a compiled function until one of its module is called."""

    def __init__(self, function: FunctionType) -> None:
        self.py_func = function
        self._made: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._made or self._of_all())(*arguments)

    def _of_all(self) -> Callable[..., Any]:
        """Numba looks up in the module what a function calls: none is used before all are made."""
        names = self.py_func.__globals__
        with _making:
            waiting = {
                name: one for name, one in dict(names).items() if isinstance(one, _Uncompiled)
            }
            made = {name: _made(one.py_func) for name, one in waiting.items()}
            names.update(made)
            for name, one in waiting.items():
                one._made = made[name]
            self._made = self._made or _made(self.py_func)
            return self._made


def _made(function: FunctionType) -> Callable[..., Any]:
    if not has_numba():
        return function
    from numba import njit

    made: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    return made


def plain_twins(module: ModuleType) -> dict[str, Any]:
    """The module's names, with every compiled function uncompiled and calling its like."""
    names = dict(vars(module))
    for name, value in vars(module).items():
        source = getattr(value, "py_func", None)
        if source is not None:
            names[name] = FunctionType(source.__code__, names, name)
    return names
