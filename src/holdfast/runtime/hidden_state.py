"""State that a job keeps where nobody looks: it is in no checkpoint, and no joiner gets it.

After the first steps, once: tensors that change from step to step and can be reached from the
optimizer, the layers or the job file, but are no parameters, buffers or optimizer state. What
cannot be reached in a few steps, or does not change so soon, is not found.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from holdfast.job import Job

_LOOKS_AT = (2, 4)  # steps after it was built; caches of the first forwards are there by then
_DEPTH = 4
_MOST_VALUES = 20_000  # a job file may hold its whole data set
_Mark = tuple[Any, int]  # a value, and of a tensor how often it was written to
_ADVICE = (
    "is in no checkpoint, and a worker that joins lacks it; keep it in a buffer or in "
    "optimizer.state"
)


class HiddenState:
    def __init__(
        self, job: Job, layers: Mapping[int, nn.Module], optimizer: Optimizer | None
    ) -> None:
        self._job, self._layers, self._optimizer = job, layers, optimizer
        self._num_steps = 0
        self._before: dict[str, _Mark] = {}

    def look(self) -> list[str]:
        """After each step; what there is to say, once."""
        self._num_steps += 1
        if self._num_steps == _LOOKS_AT[0]:
            self._before = self._marks()
        if self._num_steps != _LOOKS_AT[1]:
            return []
        now, before = self._marks(), self._before
        self._before = {}
        changed = [path for path, mark in now.items() if _differ(before.get(path, mark), mark)]
        names = dict.fromkeys(path.partition("[")[0] for path in changed)
        return [f"{name} changes while training, but {_ADVICE}" for name in names]

    def _marks(self) -> dict[str, _Mark]:
        walk = _Walk(self._known())
        for number, layer in self._layers.items():
            for path, module in layer.named_modules():
                where = f"layer {number} ({type(layer).__name__}): {path + '.' if path else ''}"
                walk.names(where, vars(module), _MODULE_NAMES, numbers=True)
        if self._optimizer is not None:
            where = f"the optimizer ({type(self._optimizer).__name__}): "
            walk.names(where, vars(self._optimizer), _OPTIMIZER_NAMES)
            for hook in _hooks(self._optimizer):
                walk.function(f"{where}a hook's ", hook)
        for name in ("optimizer", "loss"):
            walk.function(f"Job.{name}: ", getattr(self._job, name))
        return walk.marks

    def _known(self) -> set[int]:
        """Values that everyone gets."""
        known: list[Tensor] = []
        for layer in self._layers.values():
            known += [*layer.parameters(), *layer.buffers()]
        if self._optimizer is not None:
            states = self._optimizer.state.values()
            known += [v for state in states for v in state.values() if isinstance(v, Tensor)]
        modules = (m for layer in self._layers.values() for m in layer.modules())
        return {*map(id, known), *map(id, modules), id(self._optimizer), id(self._job)}


class _Walk:
    """From names to tensors, each value once."""

    def __init__(self, known: set[int]) -> None:
        self._seen = set(known)
        self.marks: dict[str, _Mark] = {}

    def names(
        self, where: str, values: Mapping[str, Any], but: Iterable[str], *, numbers: bool = False
    ) -> None:
        for name, value in list(values.items()):
            if name in but or name.startswith("__"):
                continue
            if numbers and type(value) in (int, float):
                self.marks[where + name] = (value, 0)
            else:
                self._value(where + name, value, _DEPTH)

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
        self.names(where, {name: c.cell_contents for name, c in cells if _is_set(c)}, ())
        if function.__module__.startswith("holdfast_job_"):
            self.names("the job file: ", function.__globals__, ())

    def _value(self, path: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or len(self._seen) > _MOST_VALUES:
            return
        if isinstance(value, Tensor):
            self.marks[path] = (value, value._version)
            return
        if depth and not isinstance(value, str | bytes | int | float | type | ModuleType):
            self._seen.add(id(value))
            for name, inner in _inside(value):
                self._value(f"{path}[{name}]", inner, depth - 1)


def _differ(before: _Mark, now: _Mark) -> bool:
    (one, written), (other, written_now) = before, now
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(type(one) is type(other) and one != other)
    if one is other:
        return written != written_now
    alike = one.shape == other.shape and one.dtype == other.dtype
    return not (alike and torch.equal(one, other))  # else made anew each time, the same


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from list(value.items())
    elif isinstance(value, list | tuple | set):
        yield from enumerate(value)
    elif isinstance(value, nn.Module):  # e.g. an averaged model
        yield from value.named_parameters()
        yield from value.named_buffers()
    elif not isinstance(value, FunctionType | MethodType):
        yield from list(getattr(value, "__dict__", {}).items())


def _hooks(optimizer: Optimizer) -> list[Callable[..., Any]]:
    found = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return [hook for hooks in found for hook in hooks.values()]


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False


_MODULE_NAMES = frozenset(vars(nn.Module()))
_OPTIMIZER_NAMES = frozenset(
    {*vars(SGD([nn.Parameter()], lr=0.1)), "step", "_step_count", "_opt_called"}
)
