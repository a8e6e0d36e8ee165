"""What a worker runs in: a process of its own, or a thread of the launcher's. How it ends.

The only place of the runtime that catches broadly: whatever goes wrong here is told to the
coordinator, so that a run ends with a reason.
"""

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from holdfast.auth.handshake import WORKER_ROLE
from holdfast.config import RunConfig
from holdfast.device.choosing import make_deterministic
from holdfast.errors import HoldfastError, PeerLost, TransportClosed
from holdfast.faults.duty_cycle import DutyCycle
from holdfast.faults.injection import (
    Act,
    Killed,
    LastingFaults,
    ProcessActions,
    ThreadActions,
    WorkerFaults,
)
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import WorkerSpec
from holdfast.protocol.successors import Successors
from holdfast.runtime.link.control_link import ControlLink, Stopped
from holdfast.runtime.state.state_keeping import KeepingOf
from holdfast.runtime.worker.failures import worker_failed
from holdfast.runtime.worker.stacks import ignore_signal
from holdfast.runtime.worker.worker import Worker
from holdfast.runtime.worker.worker_places import log_service
from holdfast.transport.base import Limits
from holdfast.transport.link_shaping import FaultyTransport
from holdfast.transport.tcp.transport import TcpTransport

_KILLED = 137  # as a shell tells of SIGKILL
CUT_OFF = 75  # exit code of a worker that the launcher does not talk to any more
_PR_SET_NAME = 15
END_LIMIT_S = 60.0  # of a worker that was told to stop, or that the run has given up


def run_process(spec: WorkerSpec, keeping_of: KeepingOf) -> int:
    """Everything of a worker process; returns its exit code."""
    ignore_signal()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"holdfast {spec.worker}".encode())  # for ps -e
    prepare_torch(spec.config)
    limits = transport_limits(spec.config)
    access, network = spec.access, spec.config.network
    transport = TcpTransport(
        spec.worker,
        access.secret,
        network.listen,
        advertise_host=network.advertise,
        generation=spec.first_launch,
        limits=limits,
        encrypts=network.tensor_tls,
    )
    files = log_service(spec)
    transport.serve_couriers(files.take)
    try:
        return run_worker(spec, transport, keeping_of)
    finally:
        files.close()


def run_worker(
    spec: WorkerSpec,
    transport: FaultyTransport,
    keeping_of: KeepingOf,
    woken: threading.Event | None = None,
) -> int:
    """``woken``: this worker is a thread; set it to wake one that was made to hang."""
    try:
        connection, generation = _connected(spec)
    except HoldfastError:
        return 1  # the run is over already; there is nobody to tell
    link = ControlLink(
        connection,
        transport,
        lambda message: worker.aside(message),
        (lambda: None) if woken else end_soon,
        *(_successors(spec, generation), woken.is_set if woken else _goes_on, spec.relay),
    )

    def die() -> None:
        link.drop()
        transport.close()
        worker.abandon_log()

    lasting = LastingFaults(spec.worker, transport.shape_link, DutyCycle().set)
    act, is_silent = _actions(lambda fired: worker.tell_fault(fired), die, woken)
    faults = WorkerFaults(act, is_silent, lasting)
    worker = Worker(
        spec, link, transport, faults, keeping_of(spec.config), is_process=woken is None
    )
    link.start()
    try:
        return _exit_code(spec, link, worker)
    finally:
        transport.close()
        link.close()
        worker.close()


def _exit_code(spec: WorkerSpec, link: ControlLink, worker: Worker) -> int:
    """Of all its work."""
    try:
        worker.run()
    except (Stopped, TransportClosed):
        if link.failure is not None and not link.is_cut_off:
            return _tell_failure(spec, link, link.failure)
        return CUT_OFF if link.is_cut_off else 0
    except Killed:
        return _KILLED
    except KeyboardInterrupt:
        raise
    except BaseException as why:  # the job's code may say sys.exit()
        if isinstance(why, PeerLost) and not why.worker:
            return CUT_OFF  # a send found out before the reading thread did
        return _tell_failure(spec, link, why)
    return 0


def _goes_on() -> bool:
    """A process looks for another coordinator as long as it may."""
    return False


def _connected(spec: WorkerSpec) -> tuple[Connection, int]:
    workers = spec.config.workers
    limit_s = workers.start_limit_s  # strangers may crowd the door
    silence_s = workers.silence_limit_s
    return connect(spec.access, WORKER_ROLE, str(spec.worker), limit_s, silence_limit_s=silence_s)


def _successors(spec: WorkerSpec, generation: int) -> Successors:
    workers = spec.config.workers
    return Successors(
        replace(spec.access, generation=generation),
        WORKER_ROLE,
        str(spec.worker),
        spec.run_dir,
        limit_s=workers.orphan_limit_s,
        silence_limit_s=workers.silence_limit_s,
    )


def end_soon() -> None:
    """One that is stuck in the user's code would stay for ever, with all its memory."""
    timer = threading.Timer(END_LIMIT_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _actions(
    tell: Callable[[messages.Message], None],
    die: Callable[[], None],
    woken: threading.Event | None,
) -> tuple[Act, Callable[[], bool]]:
    if woken is None:
        return ProcessActions(tell).act, lambda: False
    actions = ThreadActions(tell, die, woken)
    return actions.act, lambda: actions.hanging


def transport_limits(config: RunConfig) -> Limits:
    """A full receiver is waited for as long as a missing tensor.

    A connection may be away for as long as a worker may be silent, but not so long that a
    wait for a tensor would end before it.
    """
    wait_s, usual = config.workers.start_limit_s, Limits()
    timeout_s = config.workers.heartbeat_timeout_s or usual.reconnect_limit_s
    return Limits(
        send_limit_s=wait_s,
        silence_limit_s=max(wait_s, usual.silence_limit_s),
        reconnect_limit_s=min(timeout_s, usual.reconnect_limit_s),
    )


def prepare_torch(config: RunConfig) -> None:
    torch.set_num_threads(config.workers.compute_threads)
    if config.workers.compute_threads > 1 and config.gradients.mode == "exact":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    make_deterministic(config.device.real_kind)
    # Each worker writes its own part of a checkpoint, without a process group.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    # After a resume, or a first step that was skipped, the schedule moves before the optimizer.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")


def _tell_failure(spec: WorkerSpec, link: ControlLink, why: BaseException) -> int:
    failed = worker_failed(spec.worker, why)
    try:
        link.send(failed)
    except (PeerLost, Stopped):
        return failed.exit_code  # the launcher is gone, or knows already
    return failed.exit_code
