"""Running layers one after the other so that no stage boundary shows in the result.

Each layer draws its own random numbers, works on copies of the buffers it writes to, and gets and
gives a flat tuple of tensors, whether or not its neighbours are in the same stage.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError
from holdfast.runtime.stage.buffers import LayerBuffers, untouched
from holdfast.runtime.stage.compiled import Compiled, uncompiled
from holdfast.runtime.stage.seeding import seed_layer
from holdfast.runtime.stage.split import DeferWeights
from holdfast.runtime.stage.weighing import Weigh, checked_weight

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One forward: what a layer has to know when it runs, and when it runs again in backward."""

    step: int
    microbatch: int
    mode: DeferWeights | None
    buffer_changes: dict[str, Tensor]


class LayerStack:
    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        first_layer: int,
        seed: int,
        unpack: bool,
        checkpoint_activations: bool,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        device: Device = PROCESSOR,
        ran: Callable[[str], None] = lambda who: None,
        compiled: bool = False,
    ) -> None:
        """``autocast`` is around each layer and the loss. ``ran`` is told of every layer that has
        run, and of the loss; it may raise."""
        self._layers = tuple(layers)
        self._calls = tuple(map(Compiled, layers)) if compiled else self._layers
        self._around_loss = uncompiled if compiled else nullcontext
        self._first_layer = first_layer
        self._seed = seed
        self._unpack = unpack
        self._autocast, self._ran, self._device = autocast, ran, device
        self._checkpoint_activations = checkpoint_activations
        self._buffers = tuple(LayerBuffers(layer) for layer in layers)
        self._writes_to_inputs: bool | None = None  # learnt in the first forward

    def forward(self, run: ForwardPass, inputs: Tensors) -> Tensors:
        copied = self._writes_to_inputs is not False
        given = values = tuple(_presented(tensor, copied) for tensor in inputs)
        for index in range(len(self._layers)):
            if self._checkpoint_activations:
                values = self._run_checkpointed(run, index, values)
            else:
                values = self._run_layer(run, index, *values)
            values = _as_received(values)
            self._hook(run, self._first_layer + index, values)
        if self._writes_to_inputs is None:
            self._writes_to_inputs = any(tensor._version for tensor in given)
        return values

    def evaluate(self, run: ForwardPass, inputs: Tensors) -> Tensors:
        """As a forward, without a trace of it: neither gradients nor changes of buffers."""
        values = tuple(_presented(tensor, copied=True) for tensor in inputs)
        for index, layer in enumerate(self._layers):
            number = self._first_layer + index
            seed_layer(self._seed, run.step, run.microbatch, number, device=self._device)
            with untouched(layer), named(number, layer, values):
                result = self._applied(self._calls[index], values)
            self._ran(f"layer {number} ({type(layer).__name__})")
            values = _as_received(flat(number, result, self._unpack))
        return values

    def _applied(self, layer: Callable[..., Any], values: Tensors) -> Any:
        with self._autocast():
            return layer(*values) if self._unpack else layer(joined(values))

    def run_loss(self, run: ForwardPass, loss: Callable[[Any, Any], Tensor], given: Any) -> Tensor:
        """A loss draws its random numbers as one more layer would, in backward too."""
        after_last = self._first_layer + len(self._layers)
        seed_layer(self._seed, run.step, run.microbatch, after_last, device=self._device)
        with self._around_loss(), self._autocast():
            value = loss(*given)
        self._ran("Job.loss")
        self._hook(run, after_last, (value,))
        return value

    def run_weight(self, run: ForwardPass, weigh: Weigh, target: Any) -> float:
        """Seeded as the loss: a weight is the same whoever asks for it."""
        after_last = self._first_layer + len(self._layers)
        seed_layer(self._seed, run.step, run.microbatch, after_last, device=self._device)
        value = weigh(target)
        self._ran("Job.weight")
        step = f" of step {run.step + 1}" if run.step >= 0 else ""  # a validation adds its own
        return checked_weight(value, f"micro-batch {run.microbatch}{step}")

    def _hook(self, run: ForwardPass, number: int, values: Tensors) -> None:
        """Have the backward of a layer begin from a seed of its own, and contiguous."""
        for output, tensor in enumerate(values):
            if tensor.requires_grad and tensor.grad_fn is not None:
                key = (self._seed, run.step, run.microbatch, number, output)
                _hook_first(tensor, partial(_begin_backward, self._device, key))

    def apply_buffer_changes(self, mean_changes: Mapping[str, Tensor]) -> None:
        for number, buffers in enumerate(self._buffers, self._first_layer):
            prefix = f"{number}."
            own = {key: v for key, v in mean_changes.items() if key.startswith(prefix)}
            buffers.apply({key.removeprefix(prefix): change for key, change in own.items()})

    def _run_layer(self, run: ForwardPass, index: int, *values: Tensor) -> Tensors:
        number = self._first_layer + index
        layer = self._layers[index]
        seed_layer(self._seed, run.step, run.microbatch, number, device=self._device)
        if run.mode is not None:
            run.mode.enter_layer()
        with self._buffers[index].private() as changes, named(number, layer, values):
            result = self._applied(self._calls[index], values)
        self._ran(f"layer {number} ({type(layer).__name__})")
        run.buffer_changes.update((f"{number}.{path}", c) for path, c in changes.items())
        return flat(number, result, self._unpack)

    def _run_checkpointed(self, run: ForwardPass, index: int, values: Tensors) -> Tensors:
        versions = [tensor._version for tensor in values]
        # The layer seeds itself, so torch need not keep the state of the generators.
        result: Tensors = checkpoint(
            self._run_layer,
            *(run, index, *values),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        if versions != [tensor._version for tensor in values]:
            raise ConfigError(
                f"layer {self._first_layer + index} writes to its input in place, so it cannot run "
                "again in backward; make it return a new tensor or turn checkpointing off"
            )
        return result


def flat(number: int, result: Any, unpack: bool) -> Tensors:
    """A layer's result as the tuple that is handed on; refuses what cannot be."""
    values = (result,) if isinstance(result, Tensor) else result
    if not isinstance(values, list | tuple) or not all(isinstance(v, Tensor) for v in values):
        raise ConfigError(
            f"layer {number} returned {_describe(result)}; "
            "between layers only a tensor or a flat tuple of tensors can be passed"
        )
    if values is result and len(values) < 2 and not unpack:
        raise ConfigError(
            f"layer {number} returned a tuple of {len(values)}; return the tensor itself"
        )
    return tuple(values)


@contextmanager
def named(number: int, layer: nn.Module, values: Tensors) -> Iterator[None]:
    """An error inside a layer says which layer it was and what it was given.

    A note, not another exception: torch's checkpointing passes exceptions of its own through here.
    """
    try:
        yield
    except BaseException as why:
        shapes = ", ".join(str(tuple(value.shape)) for value in values)
        why.add_note(f"in layer {number} ({type(layer).__name__}), input {shapes}")
        raise


def joined(values: Tensors) -> Any:
    """What a function of one argument is given."""
    return values[0] if len(values) == 1 else values


def _as_received(values: Tensors) -> Tensors:
    """Between any two layers, what a boundary between stages would make of the tensors.

    Contiguous, each in memory of its own, and so is the gradient that comes back, by a hook: the
    kernels a layer ends up in must not depend on where the stages are cut.
    """
    seen: set[int] = set()
    received = []
    for tensor in values:
        own = tensor.contiguous()
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        received.append(own)
    return tuple(received)


def _hook_first(tensor: Tensor, hook: Callable[[Tensor], Tensor]) -> None:
    """Before hooks of the layer, which may draw; and of a tensor that a later layer only passed
    on, the hook of the layer that made it has the last word.
    """
    handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    hooks: Any = tensor._backward_hooks
    earlier = [key for key in hooks if key != handle.id]
    for key in earlier:  # not move_to_end: torch goes by the order of insertion
        hooks[key] = hooks.pop(key)


def _begin_backward(device: Device, key: tuple[int, ...], gradient: Tensor) -> Tensor:
    seed_layer(*key, device=device)
    return gradient.contiguous()


def _presented(tensor: Tensor, copied: bool) -> Tensor:
    """What the first layer sees of a stage's input.

    A layer may write to its input in place, but not to a leaf of the graph, nor to a tensor
    that the sender still keeps. A view, because autocast treats a leaf unlike other activations.
    """
    return tensor.clone() if copied else tensor.view_as(tensor)


def _describe(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {', '.join(type(r).__name__ for r in result)}"
    return type(result).__name__
