"""The message by which a worker tells that a fault was injected into it."""

from holdfast.protocol.messages import FaultReport


def fired(
    worker: str,
    fault: str,
    *,
    step: int = 1,
    point: str = "begin",
    done: int = 0,
    at_s: float = 0.0,
) -> FaultReport:
    return FaultReport(
        worker=worker,
        fault_kind=fault.split()[0],
        fault=fault,
        step=step,
        attempt=0,
        point=point,
        done=done,
        at_s=at_s,
    )
