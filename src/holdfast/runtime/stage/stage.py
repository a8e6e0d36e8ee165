"""One part of the model and its micro-batches in flight: forward, and backward whole or split.

The two parts together leave exactly the bits of the whole. Tensors of the host come in, tensors of
the host go out, whatever the device; weight gradients go to a sink. Knows nothing of schedules,
peers or optimizers.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError, ScheduleError
from holdfast.runtime.stage.deferred_ops import Deferred, Piece
from holdfast.runtime.stage.layers import ForwardPass, LayerStack, Tensors, joined
from holdfast.runtime.stage.seeding import DRAWING, undisturbed
from holdfast.runtime.stage.slots import Freezing, slots_of
from holdfast.runtime.stage.split import DeferWeights, run_backward, weight_gradients
from holdfast.runtime.stage.weighing import Weigh, WeightedLoss

BoundaryGradients = tuple[Tensor | None, ...]
Metric = Callable[[Any, Any], float]
_NO_STEP = -1  # random numbers of an evaluation: the same whenever it is


class GradientSink(Protocol):
    """Where weight gradients add up."""

    @property
    def native(self) -> bool:
        """True: every parameter's ``grad`` is the accumulator, so that a whole backward has
        added its share already and only a split one calls ``add``."""
        ...

    def add(self, slot: int, gradient: Tensor) -> None:
        """All that one micro-batch contributes to one parameter: called once for each pair."""
        ...


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """What a micro-batch holds between forward and backward."""

    step: int
    inputs: Tensors
    outputs: Tensors
    mode: DeferWeights | None
    weight: float

    def run_backward(self, output_gradients: BoundaryGradients) -> BoundaryGradients:
        given = zip(self.outputs, output_gradients, strict=True)
        roots = [(out, grad) for out, grad in given if out.requires_grad and _is_present(grad, out)]
        if roots:
            run_backward(self.mode, *zip(*roots, strict=True))
        return tuple(_take_gradient(tensor) for tensor in self.inputs)


@dataclass(frozen=True, slots=True)
class _Halfway:
    """What a micro-batch holds between the two parts of a split backward."""

    computed: dict[int, Tensor]
    pieces: deque[Piece]


class Stage:
    """Layers ``first_layer``, ``first_layer + 1``, ... of the model.

    Each micro-batch goes ``forward`` and then ``backward``, or ``backward_input`` and later
    ``backward_weight``; any number may be in flight, in any order. Of the tensors that cross the
    stage's boundaries, every floating one gets a gradient back, which is an empty tensor if
    none reached it; integer and bool tensors get None. A micro-batch whose backward fails
    is gone, and what the parameters held in ``grad`` is back in place.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        first_layer: int = 0,
        seed: int = 0,
        unpack: bool = False,
        loss: Callable[[Any, Any], Tensor] | None = None,
        weight: Weigh | None = None,
        loss_scale: Callable[[int], float] = lambda step: 1.0,
        checkpoint_activations: bool = False,
        compiled: bool = False,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        sink: GradientSink | None = None,
        device: Device = PROCESSOR,
        ran: Callable[[str], None] = lambda who: None,
        frozen_steps: Mapping[str, int] | None = None,
    ) -> None:
        """``unpack``: several tensors between two layers are passed as several arguments, not
        as one tuple. ``loss``, of the last stage, is called with its output and the target;
        gradients are those of the loss times ``weight`` of the target (None: 1) and times
        ``loss_scale`` of the step. ``autocast`` is around each layer and the loss. ``layers`` are
        on the ``device``. ``ran`` is told of every layer that has run, and of the loss; it may
        raise. ``frozen_steps``: of some parameters, by key: they get no gradient before.
        """
        self.slots = slots_of(layers, first_layer)
        self.sink = sink
        self._stack = LayerStack(
            layers,
            first_layer=first_layer,
            seed=seed,
            unpack=unpack,
            checkpoint_activations=checkpoint_activations,
            compiled=compiled,
            autocast=autocast,
            device=device,
            ran=ran,
        )
        self._device = device
        self._is_first = first_layer == 0
        self._loss, self._weight = _checked_loss(loss), weight
        self._loss_scale = loss_scale
        own = {slot.key: slot.parameter for slot in self.slots}
        self._freezing = Freezing(own, frozen_steps or {})
        self._forwarded: dict[int, _Forwarded] = {}
        self._halfway: dict[int, _Halfway] = {}
        self._losses: dict[int, tuple[Tensor, float]] = {}  # with the weight
        self._buffer_changes: dict[int, dict[str, Tensor]] = {}

    @property
    def in_flight(self) -> int:
        """Micro-batches that hold memory: forwarded, and not yet all the way back."""
        return len(self._forwarded) + len(self._halfway)

    def forward(
        self,
        step: int,
        microbatch: int,
        inputs: Tensors,
        target: Any = None,
        *,
        split: bool = False,
        constants: Collection[int] = (),
    ) -> Tensors:
        """The tensors for the next stage; none on the last one, see :meth:`take_loss`.

        With ``split``, a ``backward_input`` leaves most of the weights' share to
        ``backward_weight``; without, both work too, but the first does it all.
        """
        if microbatch in self._forwarded or microbatch in self._halfway:
            raise ScheduleError(f"forward of micro-batch {microbatch}, which is in flight already")
        slots = self._freezing.slots_in(step)
        run = ForwardPass(step, microbatch, DeferWeights(slots) if split else None, {})
        with DRAWING, torch.enable_grad():
            leaves = tuple(
                tensor if index in constants else self._leaf(tensor)
                for index, tensor in enumerate(self._placed(inputs))
            )
            with run.mode or nullcontext():
                outputs, weight = self._stack.forward(run, leaves), 1.0
                if self._loss is not None:
                    outputs, weight = self._run_loss(self._loss, run, outputs, target)
        self._forwarded[microbatch] = _Forwarded(step, leaves, outputs, run.mode, weight)
        self._buffer_changes[microbatch] = run.buffer_changes
        if self._loss is not None:
            return ()
        return tuple(self._device.to_host(t).requires_grad_(t.requires_grad) for t in outputs)

    def evaluate(self, microbatch: int, inputs: Tensors) -> Tensors:
        """The outputs of the last layer, of the last stage too, where they stay on the device.
        Nothing else stays of it; whoever calls has put the layers into the mode they are to be in.
        """
        run = ForwardPass(_NO_STEP, microbatch, None, {})
        with DRAWING, torch.no_grad(), undisturbed(self._device):
            outputs = self._stack.evaluate(run, self._placed(inputs))
            return outputs if self._loss is not None else tuple(map(self._device.to_host, outputs))

    def score(
        self, microbatch: int, outputs: Tensors, target: Any, metrics: Mapping[str, Metric]
    ) -> tuple[WeightedLoss, dict[str, float]]:
        """Loss and metrics of what the last stage has evaluated."""
        assert self._loss is not None, "only the last stage has it"
        run = ForwardPass(_NO_STEP, microbatch, None, {})
        with DRAWING, torch.no_grad(), undisturbed(self._device):
            target = self._device.place_all(target)
            self._run_loss(self._loss, run, outputs, target)
            loss, output = self.take_loss(microbatch), joined(outputs)
            if not loss.weight:
                return loss, dict.fromkeys(metrics, 0.0)
            return loss, {name: metric(output, target) for name, metric in metrics.items()}

    def take_loss(self, microbatch: int) -> WeightedLoss:
        """The loss of a forwarded micro-batch, not scaled. Can be taken once."""
        loss, weight = self._losses.pop(microbatch)
        return WeightedLoss(loss.item(), weight)

    def take_buffer_changes(self, microbatch: int) -> dict[str, Tensor]:
        """What the micro-batch's forward wants added to which buffers. Can be taken once.

        Sums of these are exact: they do not depend on the order.
        """
        return dict(self._buffer_changes.pop(microbatch, {}))

    def apply_buffer_changes(self, mean_changes: Mapping[str, Tensor]) -> None:
        """Once a step: the mean over all micro-batches of the global batch."""
        self._stack.apply_buffer_changes(mean_changes)

    def backward(
        self, microbatch: int, output_gradients: BoundaryGradients = ()
    ) -> BoundaryGradients:
        """Whole: gives the gradients of the inputs, and those of the weights to the sink.

        On the last stage no ``output_gradients`` are passed; on the first none come back.
        """
        forwarded = self._take_forwarded(microbatch)
        sink = self._require_sink()
        with DRAWING:
            if sink.native:
                return self._run_backward(forwarded, output_gradients)
            with self._own_gradients() as gradients:
                input_gradients = self._run_backward(forwarded, output_gradients)
            self._hand_over(gradients.items())
        return input_gradients

    def backward_input(
        self, microbatch: int, output_gradients: BoundaryGradients = ()
    ) -> BoundaryGradients:
        """First part: the gradients of the inputs. The sink gets nothing yet."""
        forwarded = self._take_forwarded(microbatch)
        deferred = Deferred() if forwarded.mode is None else forwarded.mode.deferred
        deferred.deferring = True
        with DRAWING, self._own_gradients() as gradients:
            input_gradients = self._run_backward(forwarded, output_gradients)
        self._halfway[microbatch] = _Halfway(gradients, deferred.pieces)
        return input_gradients

    def backward_weight(self, microbatch: int) -> None:
        """Second part: the gradients of the weights, to the sink."""
        halfway = self._halfway.pop(microbatch, None)
        if halfway is None:
            raise ScheduleError(
                f"backward_weight of micro-batch {microbatch} before its first part"
            )
        with DRAWING, torch.no_grad():
            self._hand_over(weight_gradients(halfway.pieces, halfway.computed))

    def drop(self, microbatch: int) -> None:
        """Forget a micro-batch wherever it is. What the sink has already got stays there."""
        held: tuple[dict[int, Any], ...] = (self._forwarded, self._halfway)
        for record in (*held, self._losses, self._buffer_changes):
            record.pop(microbatch, None)

    def drop_all(self) -> None:
        for microbatch in {*self._forwarded, *self._halfway, *self._losses, *self._buffer_changes}:
            self.drop(microbatch)

    def _leaf(self, tensor: Tensor) -> Tensor:
        return tensor.requires_grad_(not self._is_first and carries_gradient(tensor))

    def _placed(self, tensors: Tensors) -> Tensors:
        return tuple(self._device.place(tensor.detach()) for tensor in tensors)

    def _run_loss(
        self, loss: Callable[[Any, Any], Tensor], run: ForwardPass, outputs: Tensors, target: Any
    ) -> tuple[Tensors, float]:
        """Where the backward begins, and the weight. A mean over nothing is no number: of a
        micro-batch without weight the gradients are zero from the last layer's output on."""
        weight = 1.0
        if self._weight is not None:
            weight = self._stack.run_weight(run, self._weight, target)
        if not weight:
            self._losses[run.microbatch] = torch.zeros(()), weight
            return outputs, weight
        value = self._stack.run_loss(run, loss, (joined(outputs), self._device.place_all(target)))
        if value.numel() != 1:
            raise ConfigError(
                f"the loss has shape {tuple(value.shape)}; it must be a single number"
            )
        self._losses[run.microbatch] = value.detach(), weight
        return (value,), weight

    def _run_backward(self, forwarded: _Forwarded, given: BoundaryGradients) -> BoundaryGradients:
        if self._loss is None:
            roots = tuple(None if g is None else self._device.place(g) for g in given)
        else:
            seed = forwarded.weight * self._loss_scale(forwarded.step)
            roots = tuple(torch.full_like(output, seed) for output in forwarded.outputs)
        gradients = forwarded.run_backward(roots)
        return tuple(None if g is None else self._device.to_host(g) for g in gradients)

    def _take_forwarded(self, microbatch: int) -> _Forwarded:
        if microbatch not in self._forwarded:
            raise ScheduleError(f"backward of micro-batch {microbatch} before its forward")
        forwarded = self._forwarded.pop(microbatch)
        self._freezing.slots_in(forwarded.step)
        return forwarded

    def _require_sink(self) -> GradientSink:
        assert self.sink is not None, "set Stage.sink before the first backward"
        return self.sink

    @contextmanager
    def _own_gradients(self) -> Iterator[dict[int, Tensor]]:
        """Set every ``grad`` aside; afterwards the dict holds what autograd left there."""
        kept = [slot.parameter.grad for slot in self.slots]
        gradients: dict[int, Tensor] = {}
        for slot in self.slots:
            slot.parameter.grad = None
        try:
            yield gradients
            for index, slot in enumerate(self.slots):
                if slot.parameter.grad is not None:
                    gradients[index] = slot.parameter.grad
        finally:
            for slot, gradient in zip(self.slots, kept, strict=True):
                slot.parameter.grad = gradient

    def _hand_over(self, gradients: Iterable[tuple[int, Tensor]]) -> None:
        sink = self._require_sink()
        for index, gradient in gradients:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            sink.add(index, dense.to(self.slots[index].parameter.dtype))


def carries_gradient(tensor: Tensor) -> bool:
    """Whether a tensor can get a gradient back at all."""
    return tensor.is_floating_point() or tensor.is_complex()


def _is_present(gradient: Tensor | None, output: Tensor) -> bool:
    return gradient is not None and gradient.shape == output.shape


def _take_gradient(tensor: Tensor) -> Tensor | None:
    if not tensor.requires_grad:
        return None
    return tensor.new_empty(0) if tensor.grad is None else tensor.grad


def _checked_loss(
    loss: Callable[[Any, Any], Tensor] | None,
) -> Callable[[Any, Any], Tensor] | None:
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ConfigError("the loss has trainable parameters; move them into the last layer")
    return loss
