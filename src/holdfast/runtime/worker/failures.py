"""What a worker tells of a failure, in one line and in full."""

import traceback

from holdfast.cluster import WorkerId
from holdfast.device.refusals import explained
from holdfast.errors import (
    CheckpointError,
    ConfigError,
    HoldfastError,
    JobError,
    LogGap,
    PeerLost,
)
from holdfast.host.scarce import is_scarcity
from holdfast.protocol import messages


def one_line(why: BaseException) -> str:
    """What was raised, with the notes on it. Our own errors need no kind."""
    text = str(why) if isinstance(why, HoldfastError) else f"{type(why).__name__}: {why}"
    return " ".join("; ".join([text, *getattr(why, "__notes__", [])]).split())


def worker_failed(worker: WorkerId, why: BaseException) -> messages.Failed:
    """It ends."""
    why = explained(str(worker), why)
    return messages.Failed(
        worker=str(worker),
        lost=why.worker if isinstance(why, PeerLost) else "",
        exit_code=_exit_code(why),
        reason=one_line(why),
        details="" if isinstance(why, ConfigError) else _details(why),
        scarce=is_scarcity(why),
    )


def job_failed(worker: WorkerId, epoch: int, why: JobError) -> messages.JobFailed:
    """All that it holds is whole: it waits to be told to save it."""
    cause = explained(str(worker), why.__cause__ or why)
    return messages.JobFailed(
        worker=str(worker),
        epoch=epoch,
        step=why.step,
        exit_code=_exit_code(cause),
        reason=one_line(cause),
        details=_details(cause),
    )


def replay_failed(
    worker: WorkerId, order: messages.Replay, why: LogGap | CheckpointError | JobError
) -> messages.ReplayFailed:
    # Without its checkpoint, or a place for the state, no version can be had.
    reached = order.first_step - 1 if isinstance(why, CheckpointError) else why.step
    # What the job raises may be over when all train these steps again, or ends the run.
    is_job = isinstance(why, JobError)
    cause = explained(str(worker), why.__cause__ or why) if is_job else why
    return messages.ReplayFailed(
        worker=str(worker), epoch=order.epoch, reached=reached, reason=one_line(cause)
    )


def _exit_code(why: BaseException) -> int:
    return why.exit_code if isinstance(why, HoldfastError) else 1


def _details(why: BaseException) -> str:
    return "".join(traceback.format_exception(why))
