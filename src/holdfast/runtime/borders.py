"""Tensors of neighbouring stages, over the transport: received, kept for who may ask again, sent.

The number of tensors and whether they take a gradient travel in the tag, so that a receiver
needs to know nothing beforehand. Who sends to whom is in the routes of a step.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.boundary_log import BoundaryLog
from holdfast.runtime.crossings import Crossings, Tensors
from holdfast.runtime.ledger import Ledger
from holdfast.schedule.operation import Fact, Kind, Op, What
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import Channel, Tag, Transport

MAX_BORDER_TENSORS = 16
_MORE = 32  # tensor i of k travels as part _MORE * i + k ...
_CONSTANT = 1024  # ... plus this if it is an activation that takes no gradient

Address = tuple[WorkerId, Tag]


class TransportBoundary:
    """Between this worker and those that the routes name. ``ledger`` and ``log`` keep a copy."""

    def __init__(
        self,
        me: WorkerId,
        transport: Transport,
        ledger: Ledger,
        log: BoundaryLog,
        crossings: Crossings,
        timeout_s: float,
    ) -> None:
        self._me, self._transport, self._timeout_s = me, transport, timeout_s
        self._ledger, self._log, self._crossings = ledger, log, crossings
        self._first_part = 1  # of the last input

    def begin_step(self, step: int) -> None:
        self._log.begin_step(step)

    # --- in ---

    def comes_before(self, op: Op, at: Attempt, others: Sequence[Address]) -> bool:
        wanted = self._wanted(op, at)
        if not wanted:
            return True
        with self._log.waits():
            found = self._transport.wait_any([*others, *wanted], self._timeout_s)
        return found >= len(others)

    def receive(self, op: Op, at: Attempt) -> Tensors:
        wanted = self._wanted(op, at)
        if not wanted:
            return ()
        with self._log.waits():
            first = wanted[self._transport.wait_any(wanted, self._timeout_s)]
            return self._receive(op, *first)

    def _wanted(self, op: Op, at: Attempt) -> list[Address]:
        """First messages any of which says that the operation's input is here; [] if it needs none.

        The part of the first one tells how many there are.
        """
        origin = at.routes.origin(op)
        if origin is None or op.microbatch is None:
            return []
        tag = Tag(_channel_in(op), at.step, at.number, op.microbatch)
        if op.kind is Kind.F:
            as_before = (origin, tag._replace(part=self._first_part))
            if self._transport.has(*as_before):
                return [as_before]
            counts = range(1, MAX_BORDER_TENSORS + 1)
            return [
                (origin, tag._replace(part=n + flag)) for n in counts for flag in (0, _CONSTANT)
            ]
        count = self._crossings.num_gradients(at.step, op.microbatch)
        return [(origin, tag._replace(part=count))] if count else []

    def _receive(self, op: Op, origin: WorkerId, first: Tag) -> Tensors:
        count = first.part % _MORE
        tags = [first._replace(part=_MORE * i + count) for i in range(count)]
        if op.kind is Kind.F:
            self._first_part = first.part
            return tuple(self._receive_activation(origin, tag) for tag in tags)
        return tuple(self._transport.receive(origin, tag, self._timeout_s) for tag in tags)

    def _receive_activation(self, origin: WorkerId, tag: Tag) -> Tensor:
        """With ``requires_grad`` as the sender had it: some kernels are chosen by it."""
        either = [(origin, tag), (origin, tag._replace(part=tag.part + _CONSTANT))]
        found = self._transport.wait_any(either, self._timeout_s)
        tensor = self._transport.receive(*either[found], self._timeout_s)
        return tensor.requires_grad_(found == 0)

    # --- out ---

    def keep(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        last = at.routes.schedule.shape.last_stage
        travels = op.stage < last if op.kind is Kind.F else op.stage > 0 and op.kind is not Kind.W
        if travels:
            _check(op, tensors)
            self._ledger.keep(at.step, op, tensors)
            self._log.keep(at.step, at.number, op, tensors)

    def send(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        what = What.ACTIVATION if op.kind is Kind.F else What.GRADIENT
        for to in at.routes.receivers(op):
            self._send(to, Fact(what, op.stage, op.microbatch), at.step, at.number, tensors)

    def send_again(self, routes: RunningStep) -> None:
        for fact, to in routes.resend(self._me):
            tensors = self._ledger.find(routes.step, fact)
            self._send(to, fact, routes.step, routes.attempt, tensors)

    def _send(
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

    def forget(self, step: int, attempt: int) -> None:
        self._transport.forget(step, attempt)


def _channel_in(op: Op) -> Channel:
    return Channel.ACTIVATION if op.kind is Kind.F else Channel.GRADIENT


def _check(op: Op, tensors: Tensors) -> None:
    if op.kind is Kind.F and not tensors:
        raise ConfigError(f"stage {op.stage} hands on no tensor; a layer must return some")
    if len(tensors) > MAX_BORDER_TENSORS:
        raise ConfigError(
            f"stage {op.stage} hands on {len(tensors)} tensors; at most {MAX_BORDER_TENSORS}"
        )
