"""State that a job keeps where nobody looks: it is in no checkpoint, and no joiner gets it.

After the first steps, once: tensors and numbers that change from step to step and can be reached
from the optimizer, the layers, the job's other fields or its file, but are no parameters, buffers
or optimizer state. What
cannot be reached in a few steps, or does not change so soon, is not found.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from holdfast.job import Job, is_stream
from holdfast.runtime.job.job_walk import MODULE_NAMES, JobWalk

_LOOKS_AT = (2, 4)  # steps after it was built; caches of the first forwards are there by then
# What LR schedules set: it follows from the step's number.
_SCHEDULED = ("lr", "initial_lr", "momentum", "betas", "base_momentum", "max_momentum")
_Mark = tuple[Any, int]  # a value, and of a tensor how often it was written to
_ADVICE = (
    "is in no checkpoint, and a worker that joins lacks it; keep it in a buffer or in "
    "optimizer.state"
)

_FIELDS = ("optimizer", "loss", "lr_schedule", "collate", "data")  # the largest last


class HiddenState:
    def __init__(
        self, job: Job, layers: Mapping[int, nn.Module], optimizer: Optimizer | None
    ) -> None:
        # Not the job itself: it has the layers of the other stages.
        self._fields = {name: getattr(job, name) for name in _FIELDS}
        self._id, self._layers, self._optimizer = id(job), layers, optimizer
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
        walk = JobWalk(self._known())
        for number, layer in self._layers.items():
            for path, module in layer.named_modules():
                where = f"layer {number} ({type(layer).__name__}): {path + '.' if path else ''}"
                walk.names(where, vars(module), MODULE_NAMES)
        if self._optimizer is not None:
            self._walk_optimizer(walk, self._optimizer)
        for name, value in self._fields.items():
            if value is not None and not (name == "data" and is_stream(value)):
                walk.field(f"Job.{name}: ", value)
        return {path: _mark(value) for path, value in walk.values.items()}

    def _walk_optimizer(self, walk: JobWalk, optimizer: Optimizer) -> None:
        where = f"the optimizer ({type(optimizer).__name__}): "
        walk.names(where, vars(optimizer), _OPTIMIZER_NAMES)
        scheduled = _SCHEDULED if self._fields["lr_schedule"] is not None else ()
        for group in optimizer.param_groups:
            walk.names(f"{where}param_groups: ", group, {"params", *scheduled})
        for hook in _hooks(optimizer):
            walk.function(f"{where}a hook's ", hook)

    def _known(self) -> set[int]:
        """Values that everyone gets."""
        known: list[Tensor] = []
        for layer in self._layers.values():
            known += [*layer.parameters(), *layer.buffers()]
        if self._optimizer is not None:
            groups, states = self._optimizer.param_groups, self._optimizer.state.values()
            known += [parameter for group in groups for parameter in group["params"]]
            known += [v for state in states for v in state.values() if isinstance(v, Tensor)]
        modules = (m for layer in self._layers.values() for m in layer.modules())
        return {*map(id, known), *map(id, modules), id(self._optimizer), self._id}


def _mark(value: Any) -> _Mark:
    return value, value._version if isinstance(value, Tensor) else 0


def _differ(before: _Mark, now: _Mark) -> bool:
    (one, written), (other, written_now) = before, now
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(type(one) is type(other) and one != other)
    if one is other:
        return written != written_now
    alike = one.shape == other.shape and one.dtype == other.dtype
    return not (alike and torch.equal(one, other))  # else made anew each time, the same


def _hooks(optimizer: Optimizer) -> list[Callable[..., Any]]:
    found = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return [hook for hooks in found for hook in hooks.values()]


_OPTIMIZER_NAMES = frozenset(
    {*vars(SGD([nn.Parameter()], lr=0.1)), "step", "_step_count", "_opt_called"}
)
