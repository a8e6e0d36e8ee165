"""Workers as threads of this process, on the in-memory transport: for tests and for debugging.

Arithmetic takes turns under one lock, because torch has one random number generator a process.
"""

import threading

from holdfast.cluster import parse_worker
from holdfast.config import config_from
from holdfast.errors import HoldfastError
from holdfast.protocol.messages import StartWorkers
from holdfast.protocol.spec import WorkerSpec
from holdfast.runtime.worker import prepare_torch, run_worker, transport_limits
from holdfast.transport.local import LocalHub, LocalTransport

_END_LIMIT_S = 30.0


class WorkerThreads:
    """A starter, as the launcher wants it."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, host: str, port: int, token: str, order: StartWorkers) -> None:
        hub, compute = LocalHub(), threading.RLock()
        config = config_from(order.config)
        prepare_torch(config)
        for name in order.workers:
            spec = WorkerSpec(parse_worker(name), host, port, token, order.job, config)
            transport = LocalTransport(spec.worker, hub, limits=transport_limits(config))
            thread = threading.Thread(
                target=run_worker,
                args=(spec, transport, compute),
                name=f"holdfast {name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def ended(self) -> str | None:
        return None  # a thread that fails says so itself

    def stop(self) -> None:
        for thread in self._threads:
            thread.join(_END_LIMIT_S)
        if alive := [thread.name for thread in self._threads if thread.is_alive()]:
            raise HoldfastError(f"worker threads did not end: {', '.join(alive)}")
