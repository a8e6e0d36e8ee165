"""From the names of a job to what can be reached from them: tensors, numbers, generators.

Bounded: a few levels deep, a part of long lists, so many values in all. A job may hold its whole
data set.
"""

import random
from collections.abc import Container, Iterator, Mapping
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

JOB_FILE = "the job file: "
_DEPTH = 4
_MOST_VALUES = 20_000
_MOST_INSIDE = 1_000  # of one list or mapping
_NO_STATE = (str, bytes, bool, type(None), type, ModuleType, FunctionType, MethodType)
_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
_GLOBAL = {  # these are seeded
    id(torch.default_generator),
    id(vars(random)["_inst"]),
    id(numpy.random.mtrand._rand),
}
MODULE_NAMES = frozenset(vars(nn.Module()))


class JobWalk:
    """Each value once. ``known``: ids of what is not to be looked at."""

    def __init__(self, known: Container[int] = ()) -> None:
        self._known, self._seen = known, set[int]()
        self._left = _MOST_VALUES
        self.values: dict[str, Tensor | int | float] = {}
        self.generators: dict[str, Any] = {}

    def names(self, where: str, values: Mapping[str, Any], but: Container[str] = ()) -> None:
        for name, value in list(values.items()):
            if name not in but and not name.startswith("__"):
                self._value(where + name, value, _DEPTH)

    def field(self, where: str, value: Any) -> None:
        """A field of the job: a function, a module, or any object."""
        if isinstance(value, nn.Module):
            for path, module in value.named_modules():
                inside = f"{where}{path + '.' if path else ''}"
                self.names(inside, vars(module), MODULE_NAMES)
                self.names(inside, module._buffers)
        elif isinstance(value, FunctionType | MethodType | partial):
            self.function(where, value)
        else:
            self.names(where, getattr(value, "__dict__", {}))
            for name, inner in _items(value):
                self._value(f"{where}items[{name}]", inner, _DEPTH)

    def function(self, where: str, function: Any) -> None:
        """What it closes over, and the names of its file."""
        if isinstance(function, partial):
            self._value(f"{where}arguments", [function.args, function.keywords], _DEPTH)
            function = function.func
        if isinstance(function, MethodType):
            self._value(f"{where}owner", function.__self__, _DEPTH)
            function = function.__func__
        if not isinstance(function, FunctionType):
            return
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self.names(where, {name: c.cell_contents for name, c in cells if _is_set(c)})
        if function.__module__.startswith("holdfast_job_"):
            self.names(JOB_FILE, function.__globals__)

    def _value(self, path: str, value: Any, depth: int) -> None:
        if self._left <= 0 or id(value) in self._known or isinstance(value, _NO_STATE):
            return
        self._left -= 1
        if isinstance(value, Tensor | int | float):
            self.values.setdefault(path, value)
        elif id(value) in self._seen:
            return
        elif isinstance(value, _GENERATORS):
            self._seen.add(id(value))
            if id(value) not in _GLOBAL:
                self.generators[path] = value
        elif depth:
            self._seen.add(id(value))
            for name, inner in _inside(value):
                self._value(f"{path}[{name}]", inner, depth - 1)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, nn.Module):  # e.g. an averaged model
        yield from value.named_parameters()
        yield from value.named_buffers()
        return
    yield from list(getattr(value, "__dict__", {}).items())
    yield from _items(value)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from list(islice(value.items(), _MOST_INSIDE))
    elif isinstance(value, list | tuple | set):
        yield from enumerate(list(islice(value, _MOST_INSIDE)))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False
