"""Tensors over the borders of a stage: how many there are, which get a gradient back.

The number of tensors and whether they take a gradient travel in the tag, so that a receiver
needs to know nothing beforehand. Who sends to whom is decided elsewhere.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.schedule.operation import Fact, Kind, Op, What
from holdfast.transport.base import Channel, Tag, Transport

MAX_BORDER_TENSORS = 16
_MORE = 32  # tensor i of k travels as part _MORE * i + k ...
_CONSTANT = 1024  # ... plus this if it is an activation that takes no gradient

Tensors = tuple[Tensor, ...]
Address = tuple[WorkerId, Tag]


class Border:
    def __init__(self, me: WorkerId, stage: int, transport: Transport) -> None:
        self._me, self._stage, self._transport = me, stage, transport
        self._first_part = 1  # of the last input
        self._carries: dict[tuple[int, int], list[bool]] = {}  # which outputs get a gradient back
        self._sizes: dict[tuple[int, int], int] = {}  # elements of a micro-batch's input

    def check(self, op: Op, tensors: Tensors) -> None:
        if op.kind is Kind.F and not tensors:
            raise ConfigError(f"stage {op.stage} hands on no tensor; a layer must return some")
        if len(tensors) > MAX_BORDER_TENSORS:
            raise ConfigError(
                f"stage {op.stage} hands on {len(tensors)} tensors; at most {MAX_BORDER_TENSORS}"
            )

    def note_inputs(self, step: int, microbatch: int, inputs: Tensors) -> None:
        self._sizes[step, microbatch] = sum(tensor.numel() for tensor in inputs)

    def size_of(self, op: Op, step: int) -> int:
        """How much work a micro-batch is, next to others; 0: unknown."""
        return 0 if op.microbatch is None else self._sizes.get((step, op.microbatch), 0)

    def note_outputs(self, step: int, microbatch: int, outputs: Tensors) -> None:
        self._carries[step, microbatch] = [tensor.requires_grad for tensor in outputs]

    def placed(self, step: int, microbatch: int, gradients: Tensors) -> tuple[Tensor | None, ...]:
        """Gradients as the stage wants them: None for each output that gets none back."""
        arrived = iter(gradients)
        carries = self._carries[step, microbatch]
        return tuple(next(arrived) if carried else None for carried in carries)

    def release_before(self, step: int) -> None:
        self._carries = {key: value for key, value in self._carries.items() if key[0] >= step}
        self._sizes = {key: value for key, value in self._sizes.items() if key[0] >= step}

    # --- in ---

    def wanted(self, op: Op, origin: WorkerId, step: int, attempt: int) -> list[Address]:
        """First messages any of which says that the operation's input is here; [] if it needs none.

        The part of the first one tells how many there are.
        """
        assert op.microbatch is not None
        tag = Tag(_channel_in(op), step, attempt, op.microbatch)
        if op.kind is Kind.F:
            as_before = (origin, tag._replace(part=self._first_part))
            if self._transport.has(*as_before):
                return [as_before]
            counts = range(1, MAX_BORDER_TENSORS + 1)
            return [
                (origin, tag._replace(part=n + flag)) for n in counts for flag in (0, _CONSTANT)
            ]
        count = sum(self._carries[step, op.microbatch])
        return [(origin, tag._replace(part=count))] if count else []

    def receive(
        self, op: Op, origin: WorkerId, step: int, attempt: int, timeout_s: float
    ) -> Tensors:
        wanted = self.wanted(op, origin, step, attempt)
        if not wanted:
            return ()
        first = wanted[self._transport.wait_any(wanted, timeout_s)][1]
        count = first.part % _MORE
        tags = [first._replace(part=_MORE * i + count) for i in range(count)]
        if op.kind is Kind.F:
            self._first_part = first.part
            return tuple(self._receive_activation(origin, tag, timeout_s) for tag in tags)
        return tuple(self._transport.receive(origin, tag, timeout_s) for tag in tags)

    def _receive_activation(self, origin: WorkerId, tag: Tag, timeout_s: float) -> Tensor:
        """With ``requires_grad`` as the sender had it: some kernels are chosen by it."""
        either = [(origin, tag), (origin, tag._replace(part=tag.part + _CONSTANT))]
        found = self._transport.wait_any(either, timeout_s)
        tensor = self._transport.receive(*either[found], timeout_s)
        return tensor.requires_grad_(found == 0)

    # --- out ---

    def send_result(
        self, to: WorkerId, op: Op, step: int, attempt: int, tensors: Sequence[Tensor]
    ) -> None:
        what = What.ACTIVATION if op.kind is Kind.F else What.GRADIENT
        self.send(to, Fact(what, op.stage, op.microbatch), step, attempt, tensors)

    def send(
        self, to: WorkerId, fact: Fact, step: int, attempt: int, tensors: Sequence[Tensor]
    ) -> None:
        assert fact.microbatch is not None
        forward = fact.what is What.ACTIVATION
        channel = Channel.ACTIVATION if forward else Channel.GRADIENT
        for i, tensor in enumerate(tensors):
            part = _MORE * i + len(tensors)
            if forward and not tensor.requires_grad:
                part += _CONSTANT
            self._transport.send(to, Tag(channel, step, attempt, fact.microbatch, part), tensor)


def _channel_in(op: Op) -> Channel:
    return Channel.ACTIVATION if op.kind is Kind.F else Channel.GRADIENT
