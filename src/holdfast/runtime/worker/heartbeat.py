"""What a heartbeat tells: how far the running step is, and what the worker is busy with. And what
its clock says."""

import time

from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.runtime.step.stage_runner import StageTraining


def heartbeat(
    worker: WorkerId, epoch: int, training: StageTraining | None, renewed: int = 0
) -> messages.Heartbeat:
    """From the heartbeat's own thread. ``training``: None while it holds no stage."""
    ledger = None if training is None else training.ledger
    busy = None if training is None else training.activity.current
    return messages.Heartbeat(
        worker=str(worker),
        epoch=epoch,
        step=max(0, ledger.step) if ledger else 0,
        attempt=ledger.attempt if ledger else 0,
        done=ledger.num_done if ledger else 0,
        operation=busy.kind if busy else "",
        number=busy.number if busy else -1,
        microbatch=busy.microbatch if busy else -1,
        busy_s=training.activity.busy_s(busy) if training and busy else 0.0,
        longest={} if training is None else training.activity.take_longest(),
        saving=training is not None and training.saves.saver.is_busy,
        renewed=renewed,
    )


def clock_told(worker: WorkerId, ask: messages.ClockAsk) -> messages.ClockTold:
    now_s = time.monotonic()
    return messages.ClockTold(worker=str(worker), asked_s=ask.asked_s, heard_s=now_s, sent_s=now_s)
