"""Workers as threads of this process, on the in-memory transport: for tests and for debugging.

Arithmetic takes turns under one lock, because torch has one random number generator a process.
A thread cannot be killed: an injected fault closes all that it has open and ends it there.
"""

import threading
from typing import Any

from holdfast.adaptors.kept_traces import KeptTraces
from holdfast.cluster import parse_worker
from holdfast.errors import HoldfastError
from holdfast.protocol.messages import StartWorkers
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.runtime.state.state_keeping import KeepingOf
from holdfast.runtime.worker.process import prepare_torch, run_worker, transport_limits
from holdfast.transport.local.transport import LocalHub, LocalTransport

_END_LIMIT_S = 30.0


class WorkerThreads:
    """A starter, as the launcher wants it. Started again, it adds workers."""

    def __init__(self, keeping_of: KeepingOf) -> None:
        self._keeping_of = keeping_of
        self._threads: list[threading.Thread] = []
        self._hub = LocalHub()
        self._traces = KeptTraces()
        self.woken = threading.Event()  # set: whoever was made to hang goes on

    def start(self, access: Access, order: StartWorkers) -> None:
        config = order.config
        prepare_torch(config)
        for slot, name in enumerate(order.workers, len(self._threads)):
            worker = parse_worker(name)
            spec = WorkerSpec(
                worker,
                access,
                order.job,
                order.job_sha256,
                config,
                order.run_dir,
                order.resumed,
                order.launch,
                slot=slot,
            )
            transport = LocalTransport(spec.worker, self._hub, limits=transport_limits(config))
            thread = threading.Thread(
                target=self._run,
                args=(spec, transport, self._keeping_of, self.woken),
                name=f"holdfast {name}",
                daemon=True,
            )
            thread.start()
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _run(self, *arguments: Any) -> None:
        with self._traces.used_here():
            run_worker(*arguments)

    def ended(self) -> str | None:
        return None  # a thread that fails says so itself

    def leave(self) -> None:
        """They end with this process at the latest."""

    def stop(self) -> None:
        self.woken.set()
        for thread in self._threads:
            thread.join(_END_LIMIT_S)
        if alive := [thread.name for thread in self._threads if thread.is_alive()]:
            raise HoldfastError(f"worker threads did not end: {', '.join(alive)}")
