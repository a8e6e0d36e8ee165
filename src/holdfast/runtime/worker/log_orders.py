"""What a worker is told about logs while it trains: its own, and those that lie on its machine."""

import threading
from contextlib import suppress
from functools import partial

from holdfast.protocol import messages
from holdfast.protocol.spec import WorkerSpec
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.replay.far_reading import couriers_to
from holdfast.runtime.state.boundary_log import BoundaryLog, SendMessage
from holdfast.storage.log.copier import COPY_LIMIT_S, LogCopier, MachineCopy
from holdfast.storage.places import Places

LogOrderAside = messages.LogBoundaries | messages.Sealed | messages.TidyLogs | messages.CopyLogs


class LogOrders:
    """``tell``: from any thread."""

    def __init__(self, spec: WorkerSpec, places: Places, lease: Lease, tell: SendMessage) -> None:
        self._spec, self._places, self._lease, self._tell = spec, places, lease, tell
        self._copier = LogCopier(self._warn)
        self._copied = messages.CopyLogs(keepers={})

    def _warn(self, line: str) -> None:
        self._tell(messages.WorkerWarning(worker=str(self._spec.worker), reason=line))

    def obey(self, order: LogOrderAside, log: BoundaryLog) -> None:
        """``log``: the worker's own, now. From the control thread, which waits for no disk."""
        match order:
            case messages.LogBoundaries():
                log.boundaries(order.boundaries, order.limit_bytes)
            case messages.Sealed() if self._lease.is_valid:  # else the next one trims as much
                log.sealed(order.step)
            case messages.TidyLogs() if self._lease.is_valid:
                tidy_aside(self._places, order)
            case messages.CopyLogs() if order != self._copied:
                self._copied = order
                self._copier.follow(self._machine_copy(order))

    def _machine_copy(self, order: messages.CopyLogs) -> MachineCopy | None:
        courier = self._places.courier
        if courier is None:  # all workers are threads of one process
            return None
        tls = self._spec.config.network.tensor_tls
        for machine, addresses in order.keepers.items():
            couriers = couriers_to(courier, addresses, limit_s=COPY_LIMIT_S, tls=tls)
            return MachineCopy(machine, couriers, partial(self._places.log_copy, machine))
        return None

    def close(self) -> None:
        self._copier.close()


def tidy_aside(places: Places, order: messages.TidyLogs) -> None:
    """In a thread of its own: disks are slow, and whoever hears of it has other things to do."""
    given = (order.run, order.step, order.gone)
    with suppress(RuntimeError):  # no thread to be had: the next checkpoint says it again
        threading.Thread(target=places.tidy_logs, args=given, name="tidy", daemon=True).start()
