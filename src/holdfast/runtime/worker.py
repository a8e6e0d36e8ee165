"""One worker, from hello to goodbye: loads the job, builds its stage, trains, reports.

The only place of the runtime that catches broadly: whatever goes wrong here is told to the
coordinator, so that a run ends with a reason.
"""

import os
import queue
import resource
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch

from holdfast.cluster import parse_worker
from holdfast.config import RunConfig
from holdfast.errors import ConfigError, HoldfastError, PeerLost, TransportClosed
from holdfast.job import Batches, Job, load_job
from holdfast.models.emulated import emulated_job
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import WorkerSpec
from holdfast.runtime.fingerprint import fingerprint
from holdfast.runtime.measure import measure_layers
from holdfast.runtime.training import StageTraining
from holdfast.transport.base import Limits, Transport
from holdfast.transport.tcp import TcpTransport

_CONNECT_LIMIT_S = 10.0
_FLUSH_LIMIT_S = 10.0
_Message = TypeVar("_Message")


class Stopped(Exception):
    """The coordinator said stop, or is gone."""


class ControlLink:
    """The connection to the coordinator. A thread reads it, so that a stop ends every wait."""

    def __init__(self, connection: Connection, on_stop: Callable[[], None]) -> None:
        self._connection = connection
        self._on_stop = on_stop
        self._inbox: queue.Queue[messages.Message] = queue.Queue()
        self._lock = threading.Lock()  # the checkpoint thread sends too
        self._stopped: str | None = None
        self._thread = threading.Thread(target=self._read, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: messages.Message) -> None:
        if self._stopped is not None:  # a run of one worker waits for nobody: it hears it here
            raise Stopped(self._stopped)
        with self._lock:
            self._connection.send(message)

    def expect(self, kind: type[_Message], timeout_s: float) -> _Message:
        """The next message, which must be of ``kind``; Stopped if it is a stop."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise HoldfastError(
                f"no {kind.__name__} from the launcher in {timeout_s:g} s"
            ) from None
        if isinstance(message, messages.Stop):
            self._inbox.put(message)  # whoever asks next hears it too
            raise Stopped(message.reason)
        if not isinstance(message, kind):
            raise HoldfastError(f"got {type(message).__name__}, expected {kind.__name__}")
        return message

    def expect_any(self, timeout_s: float) -> messages.Message:
        return self.expect(object, timeout_s)  # type: ignore[return-value]

    def close(self) -> None:
        self._connection.shutdown()
        self._thread.join(_CONNECT_LIMIT_S)
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                for message in self._connection.read():
                    self._inbox.put(message)
                    if isinstance(message, messages.Stop):
                        self._stop(message.reason)
        except HoldfastError as why:  # the launcher is gone, or speaks nonsense
            self._inbox.put(messages.Stop(reason=str(why)))
            self._stop(str(why))

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        self._on_stop()


class Worker:
    def __init__(
        self,
        spec: WorkerSpec,
        link: ControlLink,
        transport: Transport,
        compute: AbstractContextManager[Any],
    ) -> None:
        self._spec = spec
        self._link = link
        self._transport = transport
        self._compute = compute

    @property
    def _config(self) -> RunConfig:
        return self._spec.config

    def run(self) -> None:
        config, limit_s = self._config, self._config.workers.start_limit_s
        with self._compute:
            job = self._load_job()
        batches = Batches(job, config.train.seed, config.parallel.microbatches)
        self._say_hello(job)
        message = self._link.expect_any(limit_s)
        if isinstance(message, messages.MeasureLayers):
            self._measure(job, batches)
            message = self._link.expect_any(limit_s)
        if not isinstance(message, messages.Assign):
            raise HoldfastError(f"got {type(message).__name__}, expected Assign")
        training = self._build(job, batches, message)
        del job  # the other stages' layers
        self._link.send(messages.Ready(worker=str(self._spec.worker)))
        go = self._link.expect(messages.Go, limit_s)
        training.run(message.first_step, config.train.steps, Path(go.run_dir))
        self._transport.flush(_FLUSH_LIMIT_S)
        self._link.send(training.finished(_peak_memory_bytes()))
        self._link.expect(messages.Stop, config.workers.wait_limit_s)

    def _load_job(self) -> Job:
        job = load_job(self._spec.job, self._config.train.seed)
        if self._config.device.emulate:
            torch.manual_seed(self._config.train.seed)
            return emulated_job(max(len(job.layers), self._config.parallel.stages))
        return job

    def _say_hello(self, job: Job) -> None:
        host, port = "", 0
        if isinstance(self._transport, TcpTransport):
            host, port = self._transport.listen()
        hello = messages.Hello(
            token=self._spec.token,
            worker=str(self._spec.worker),
            pid=os.getpid(),
            fingerprint=fingerprint(),
            num_layers=len(job.layers),
            cut=list(job.cut or ()),
            host=host,
            port=port,
        )
        self._link.send(hello)

    def _measure(self, job: Job, batches: Batches) -> None:
        with self._compute:
            forward_s, backward_s = measure_layers(job, batches)
        costs = messages.LayerCosts(
            worker=str(self._spec.worker), forward_s=forward_s, backward_s=backward_s
        )
        self._link.send(costs)

    def _build(self, job: Job, batches: Batches, assign: messages.Assign) -> StageTraining:
        if isinstance(self._transport, TcpTransport):
            self._transport.connect(
                {
                    parse_worker(name): (host, port)
                    for name, (host, port) in assign.addresses.items()
                }
            )
        self._transport.advance(assign.epoch)
        return StageTraining(
            me=self._spec.worker,
            config=self._config,
            job=job,
            batches=batches,
            transport=self._transport,
            assign=assign,
            tell=self._link.send,
            compute=self._compute,
        )


def run_process(spec: WorkerSpec) -> int:
    """Everything of a worker process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare_torch(spec.config)
    limits = transport_limits(spec.config)
    transport = TcpTransport(spec.worker, bytes.fromhex(spec.token), limits=limits)
    return run_worker(spec, transport, nullcontext())


def run_worker(spec: WorkerSpec, transport: Transport, compute: AbstractContextManager[Any]) -> int:
    try:
        connection = connect(spec.host, spec.port, _CONNECT_LIMIT_S)
    except HoldfastError:
        return 1  # the run is over already; there is nobody to tell
    link = ControlLink(connection, transport.close)
    link.start()
    try:
        Worker(spec, link, transport, compute).run()
    except (Stopped, TransportClosed):
        return 0
    except Exception as why:
        return _tell_failure(spec, link, why)
    finally:
        transport.close()
        link.close()
    return 0


def transport_limits(config: RunConfig) -> Limits:
    """A full receiver is waited for as long as a missing tensor."""
    wait_s = config.workers.wait_limit_s
    return Limits(send_limit_s=wait_s, silence_limit_s=max(wait_s, Limits().silence_limit_s))


def prepare_torch(config: RunConfig) -> None:
    torch.set_num_threads(config.workers.compute_threads)
    if config.workers.compute_threads > 1 and config.gradients.mode == "exact":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Each worker writes its own part of a checkpoint, without a process group.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    # After a resume, or a first step that was skipped, the schedule moves before the optimizer.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")


def _tell_failure(spec: WorkerSpec, link: ControlLink, why: Exception) -> int:
    mine = isinstance(why, HoldfastError)
    notes = getattr(why, "__notes__", [])
    failed = messages.Failed(
        token=spec.token,
        worker=str(spec.worker),
        lost=why.worker if isinstance(why, PeerLost) else "",
        exit_code=why.exit_code if isinstance(why, HoldfastError) else 1,
        reason="; ".join([str(why) if mine else f"{type(why).__name__}: {why}", *notes]),
        details="" if isinstance(why, ConfigError) else traceback.format_exc(),
    )
    try:
        link.send(failed)
    except (PeerLost, Stopped):
        return failed.exit_code  # the launcher is gone, or knows already
    return failed.exit_code


def _peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
