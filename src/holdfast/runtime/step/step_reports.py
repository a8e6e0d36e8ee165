"""What a worker tells the coordinator of its steps. Decides nothing."""

import time
from collections.abc import Callable

from holdfast.cluster import WorkerId
from holdfast.protocol import messages, records
from holdfast.protocol.report_limits import (
    tells_losses,
    tells_operations,
    told_operations,
    told_transfers,
)
from holdfast.runtime.job.hidden_state import HiddenState
from holdfast.runtime.probe.transfer_times import summed_up
from holdfast.runtime.step.epoch import Epoch
from holdfast.runtime.step.executor import StepSettled
from holdfast.transport.base import Transport


class StepReports:
    """``with_operations``: also when each operation ran."""

    def __init__(
        self,
        me: WorkerId,
        transport: Transport,
        hidden: HiddenState,
        lr: Callable[[], float],
        tell: Callable[[messages.Message], None],
        *,
        with_operations: bool,
    ) -> None:
        self._me, self._transport, self._hidden, self._tell = me, transport, hidden, tell
        self._lr = lr
        self._with_operations = with_operations

    def resumed(self, epoch: int) -> None:
        """The first operation of an epoch begins."""
        at_s = time.monotonic()
        self._tell(messages.Resumed(worker=str(self._me), epoch=epoch, at_s=at_s))

    def committed(self, settled: StepSettled, epoch: Epoch, clip_norm: float | None) -> None:
        committed = settled.committed
        verdict, totals = committed.verdict, committed.result.totals
        tells = tells_losses(self._me, epoch.holders[max(epoch.holders)])
        turn = (self._me, committed.step, len(epoch.stages))
        operations = settled.operations if self._with_operations else ()
        losses = totals.rows() if tells else []
        report = messages.StepReport(
            worker=str(self._me),
            step=committed.step,
            losses=[records.MicrobatchLoss(*row) for row in losses],
            num_tokens=totals.num_tokens if tells else 0,
            norm=verdict.norm,
            clipped=verdict.is_clipped(clip_norm),
            skipped=verdict.skip,
            taken_back=committed.taken_back,
            nonfinite=committed.result.reduced.nonfinite,
            loss_scale=committed.loss_scale,
            lr=self._lr(),
            operations=told_operations(*turn, operations),
            transfers=self._transfers() if tells_operations(*turn) else [],
        )
        self._tell(report)
        for line in self._hidden.look():
            if epoch.is_first_holder:  # it speaks for the others of its stage as well
                self._tell(messages.WorkerWarning(worker=str(self._me), reason=line))

    def _transfers(self) -> list[records.Transfers]:
        """Since they were last told."""
        return told_transfers(self._me, summed_up(self._transport.take_transfers()))
