"""Tensors of neighbouring stages, over the transport: received, kept for who may ask again, sent.

How many tensors there are and which take a gradient travels with them: a receiver needs to know
nothing beforehand. Who sends to whom is in the routes of a step.
"""

from collections.abc import Sequence

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, ProtocolError
from holdfast.runtime.state.boundary_log import BoundaryLog
from holdfast.runtime.step.attempt import Attempt
from holdfast.runtime.step.crossings import Crossings, Tensors
from holdfast.runtime.step.ledger import Ledger
from holdfast.schedule.operation import Fact, Kind, Op, What
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import MAX_BUNDLE, Channel, Tag, Transport

TaggedSource = tuple[WorkerId, Tag]


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

    def begin_step(self, step: int) -> None:
        self._log.begin_step(step)

    # --- in ---

    def comes_before(self, op: Op, at: Attempt, others: Sequence[TaggedSource]) -> bool:
        wanted = self._wanted(op, at)
        if wanted is None:
            return True
        with self._log.waits():
            return self._transport.wait_any([*others, wanted], self._timeout_s) == len(others)

    def receive(self, op: Op, at: Attempt) -> Tensors:
        wanted = self._wanted(op, at)
        if wanted is None:
            return ()
        with self._log.waits():
            tensors = self._transport.receive_all(*wanted, self._timeout_s)
        self._check_came(op, at, tensors)
        return tensors

    def _wanted(self, op: Op, at: Attempt) -> TaggedSource | None:
        """The first of the tensors that are the operation's input; None if it needs none."""
        origin = at.routes.origin(op)
        if origin is None or op.microbatch is None:
            return None
        is_forward = op.kind is Kind.F
        if not is_forward and not self._crossings.num_gradients(at.step, op.microbatch):
            return None
        channel = Channel.ACTIVATION if is_forward else Channel.GRADIENT
        return origin, Tag(channel, at.step, at.number, op.microbatch)

    def _check_came(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        if op.kind is Kind.F or op.microbatch is None:
            return
        expected = self._crossings.num_gradients(at.step, op.microbatch)
        if len(tensors) != expected:
            raise ProtocolError(
                f"{len(tensors)} gradients came for {op} of step {at.step + 1}: expected {expected}"
            )

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
        is_forward = fact.what is What.ACTIVATION
        channel = Channel.ACTIVATION if is_forward else Channel.GRADIENT
        self._transport.send_all(to, Tag(channel, step, attempt, fact.microbatch), tensors)

    def forget(self, step: int, attempt: int) -> None:
        self._transport.forget(step, attempt)


def _check(op: Op, tensors: Tensors) -> None:
    if op.kind is Kind.F and not tensors:
        raise ConfigError(f"stage {op.stage} hands on no tensor; a layer must return some")
    if len(tensors) > MAX_BUNDLE:
        raise ConfigError(f"stage {op.stage} hands on {len(tensors)} tensors; at most {MAX_BUNDLE}")
