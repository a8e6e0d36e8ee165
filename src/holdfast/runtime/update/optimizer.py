"""A stage's optimizer: applies a reduced gradient, can go back one step, saves and loads its state.

Works with any ``torch.optim`` class that updates each parameter from its own gradient. Knows
how to copy and put back, not when.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from holdfast.errors import CheckpointError, ConfigError
from holdfast.runtime.update.average import Average
from holdfast.runtime.update.finishing import Finishing
from holdfast.runtime.update.kept_state import as_kept, as_tensor, cloned
from holdfast.runtime.update.masters import MASTER, Masters
from holdfast.weights.files import AVERAGE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Parameters and optimizer state as they were before a step."""

    parameters: tuple[Tensor, ...]
    states: tuple[dict[str, Any], ...]
    groups: tuple[dict[str, Any], ...]  # some optimizers count in their groups

    @property
    def num_bytes(self) -> int:
        """Of the state alone: the parameters may be kept by others too."""
        values = [value for state in self.states for value in state.values()]
        return sum(value.nbytes for value in values if isinstance(value, Tensor))


class StageOptimizer:
    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        keys: Sequence[str],
        make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        make_schedule: Callable[[Optimizer], LRScheduler] | None,
        *,
        masters: bool = False,
        place: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        finishing: Finishing | None = None,
        ema: float = 0.0,
    ) -> None:
        """``masters``: parameters of less than 32 bits are updated in fp32, and rounded.
        ``place`` puts gradients and state where the parameters are. ``ema``: what stays of an
        average of the weights in a step; 0: there is none."""
        self.masters = Masters(parameters, wanted=masters)
        self._parameters = self.masters.trained
        self._keys, self._place = tuple(keys), place
        self._finishing = finishing or Finishing()
        self.average = Average(self._parameters, self._keys, ema)
        self._optimizer = make_optimizer(list(self._parameters)) if parameters else None
        self._schedule: LRScheduler | None = None
        self._schedule_step = 0
        if self._optimizer is not None:
            self._check(self._optimizer)
            groups = self._optimizer.param_groups
            self._group_of = {id(p): group for group in groups for p in group["params"]}
        self._make_schedule = make_schedule
        self._first_groups = tuple(cloned(group) for group in self._groups())
        self._begin_schedule()

    def _begin_schedule(self) -> None:
        self._schedule_step = 0
        if self._optimizer is not None and self._make_schedule is not None:
            self._schedule = _checked_schedule(self._make_schedule(self._optimizer))

    @property
    def plain(self) -> Optimizer | None:
        """The job's own; None: the stage has no trainable parameters."""
        return self._optimizer

    @property
    def kind(self) -> str | None:
        """For checkpoints; None: the stage has no trainable parameters."""
        return None if self._optimizer is None else type(self._optimizer).__name__

    def learning_rate(self) -> float:
        """Of the newest step, in the first group; 0: the stage has no trainable parameters."""
        return 0.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    def check_wrote(self, kinds: Iterable[str | None]) -> None:
        """Another optimizer's state is of no use: refuse a checkpoint that holds one."""
        others = {kind for kind in kinds if kind is not None} - {self.kind}
        if others and self.kind is not None:
            raise CheckpointError(
                f"the checkpoint was written with {others.pop()}, the job has {self.kind}; "
                "resume with the optimizer that wrote it"
            )

    def _check(self, optimizer: object) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"Job.optimizer returned a {type(optimizer).__name__}: expected a torch.optim "
                "optimizer"
            )
        if isinstance(optimizer, LBFGS):
            raise ConfigError(
                "Job.optimizer is LBFGS: it needs the loss of the whole model again inside a step; "
                "use one that updates each parameter from its own gradient, e.g. AdamW"
            )
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if given != {id(p) for p in self._parameters}:
            raise ConfigError("Job.optimizer must take exactly the parameters it is given")

    def step(
        self,
        step: int,
        gradients: Sequence[Tensor | None],
        scale: float | None = None,
        *,
        chunk_bytes: int | None = None,
        around: Callable[[Sequence[int]], AbstractContextManager[None]] = lambda chunk: (
            nullcontext()
        ),
    ) -> None:
        """Apply the gradient of training step ``step``; a None leaves its parameter alone.

        Gradients are only read: the step may have to be done again with them. What the
        parameters hold in ``grad`` belongs to the next step and stays. ``chunk_bytes``: so many
        parameters at a time, each time within ``around`` their numbers; the bits are the same.
        """
        if self._optimizer is None:
            return
        self._follow_schedule(step)
        accumulators = [parameter.grad for parameter in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.grad = None
            for chunk in self._chunks(gradients, chunk_bytes):
                with around(chunk):
                    self._step_chunk(step, chunk, gradients, scale)
        finally:
            for parameter, accumulator in zip(self._parameters, accumulators, strict=True):
                parameter.grad = accumulator
        self.masters.round_off()

    def _chunks(
        self, gradients: Sequence[Tensor | None], chunk_bytes: int | None
    ) -> Iterator[list[int]]:
        assert len(gradients) == len(self._parameters)
        given = [index for index, gradient in enumerate(gradients) if gradient is not None]
        if chunk_bytes is None:
            yield given  # also if it is empty: some optimizers count in their groups
            return
        chunk: list[int] = []
        for index in given:
            chunk.append(index)
            if sum(self._parameters[i].nbytes for i in chunk) >= chunk_bytes:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def gradient(
        self, step: int, index: int, reduced: Tensor | None, scale: float | None
    ) -> Tensor:
        """What a parameter is updated with: made when it is needed, ``reduced`` stays."""
        assert reduced is not None
        scaled = reduced if scale is None else reduced * scale
        return self._finishing.finished(step, index, scaled)

    def _step_chunk(
        self,
        step: int,
        chunk: Sequence[int],
        gradients: Sequence[Tensor | None],
        scale: float | None,
    ) -> None:
        assert self._optimizer is not None
        copy = scale is None and not _only_reads_gradients(self._optimizer)
        for index in chunk:
            parameter = self._parameters[index]
            gradient = self._place(self.gradient(step, index, gradients[index], scale))
            gradient = gradient.to(parameter.dtype, copy=copy)
            parameter.grad = _laid_out_as(parameter, gradient)
        self._optimizer.step()
        for index in chunk:
            self._parameters[index].grad = None

    def _follow_schedule(self, step: int) -> None:
        """The learning rate is a function of the step's number, also after a resume or a skip."""
        while self._schedule is not None and self._schedule_step < step:
            self._schedule.step()
            self._schedule_step += 1

    def snapshot(self, step: int) -> Snapshot:
        """As it is before ``step``, but with the learning rate of that step already set."""
        self._follow_schedule(step)
        return Snapshot(
            parameters=tuple(p.detach().clone() for p in self._parameters),
            states=tuple(cloned(self._state(p)) for p in self._parameters),
            groups=tuple(cloned(group) for group in self._groups()),
        )

    def restore(self, snapshot: Snapshot) -> None:
        with torch.no_grad():
            for parameter, old in zip(self._parameters, snapshot.parameters, strict=True):
                parameter.copy_(old)
        self.masters.round_off()
        for parameter, state in zip(self._parameters, snapshot.states, strict=True):
            self._set_state(parameter, cloned(state))
        if self._optimizer is not None:
            for group, old_group in zip(self._optimizer.param_groups, snapshot.groups, strict=True):
                group.update(cloned(old_group))

    def _groups(self) -> list[dict[str, Any]]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def state_tensors(self, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> dict[str, Tensor]:
        """Copies of all state, under "<parameter key>/<name>"; a number as "<name>#"."""
        return {name: copy(tensor) for name, tensor in self.live_tensors().items()}

    def live_tensors(self) -> dict[str, Tensor]:
        """The same, but not copied."""
        return {
            f"{key}/{name}" if isinstance(value, Tensor) else f"{key}/{name}#": as_tensor(value)
            for key, parameter in zip(self._keys, self._parameters, strict=True)
            for name, value in self._state(parameter).items()
            if value is not None
        } | {**self.masters.live_tensors(self._keys), **self.average.live_tensors()}

    def _rewind_schedule(self) -> None:
        """It only goes forward: for a state of an earlier step it begins anew."""
        if self._optimizer is None or not self._schedule_step:
            return
        for group, first in zip(self._optimizer.param_groups, self._first_groups, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(cloned(first), params=parameters)
        self._begin_schedule()

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._rewind_schedule()
        self.masters.load(tensors, self._keys)
        self.average.load(tensors)
        by_key: dict[str, dict[str, Any]] = {}
        for full, value in tensors.items():
            key, _, name = full.rpartition("/")
            if name not in (MASTER, AVERAGE):
                by_key.setdefault(key, {})[name] = value
        for key, parameter in zip(self._keys, self._parameters, strict=True):
            state = by_key.get(key, {})
            for name, value in state.items():
                if not _fits(value, parameter):
                    raise CheckpointError(
                        f"checkpoint has {key}/{name} of shape {tuple(value.shape)}, the job's "
                        f"parameter has {tuple(parameter.shape)}; resume with the same job"
                    )
            kept = {n: _laid_out_as(parameter, self._placed(n, v)) for n, v in state.items()}
            self._set_state(parameter, dict(as_kept(n, v) for n, v in kept.items()))

    def _placed(self, name: str, value: Tensor) -> Tensor:
        """torch's own keep numbers on the host, unless steps are recorded or fused."""
        groups = self._groups()
        there = any(group.get("capturable") or group.get("fused") for group in groups)
        return self._place(value) if value.dim() or (there and not name.endswith("#")) else value

    # --- for whoever takes a step back without a snapshot ---

    @property
    def optimizer(self) -> Optimizer | None:
        """None: the stage has no trainable parameters."""
        return self._optimizer

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """What is updated: a master, where there is one."""
        return self._parameters

    def state_of(self, index: int) -> dict[str, Any]:
        """Of one parameter; its tensors are not copies."""
        return self._state(self._parameters[index])

    def set_state_of(self, index: int, state: dict[str, Any]) -> None:
        self._set_state(self._parameters[index], state)

    def group_of(self, index: int) -> dict[str, Any]:
        return self._group_of[id(self._parameters[index])]

    def _state(self, parameter: nn.Parameter) -> dict[str, Any]:
        if self._optimizer is None or parameter not in self._optimizer.state:
            return {}
        return dict(self._optimizer.state[parameter])

    def _set_state(self, parameter: nn.Parameter, state: dict[str, Any]) -> None:
        assert self._optimizer is not None
        if state:
            self._optimizer.state[parameter] = state
        else:
            self._optimizer.state.pop(parameter, None)


def _only_reads_gradients(optimizer: Optimizer) -> bool:
    """True of torch's own on a CPU, but not of all their foreach variants (SGD with Nesterov)."""
    own = type(optimizer).__module__.startswith("torch.optim.")
    return own and not any(group.get("foreach") for group in optimizer.param_groups)


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """Fused optimizers walk memory: what belongs to a parameter must lie there as it does."""
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _fits(value: Tensor, parameter: Tensor) -> bool:
    """State is as large as its parameter or, as Adafactor's rows and columns, smaller in a dim."""
    missing = parameter.dim() - value.dim()
    own, wanted = value.shape, parameter.shape[max(missing, 0) :]
    return missing >= 0 and all(a in (1, b) for a, b in zip(own, wanted, strict=True))


def _checked_schedule(schedule: object) -> LRScheduler:
    if isinstance(schedule, ReduceLROnPlateau) or not isinstance(schedule, LRScheduler):
        raise ConfigError(
            f"Job.lr_schedule returned a {type(schedule).__name__}: expected a torch LRScheduler "
            "that depends on the step alone, e.g. LambdaLR"
        )
    return schedule
