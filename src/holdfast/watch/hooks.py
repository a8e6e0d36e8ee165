"""Runs inside the processes of a watched job: times every call of ``torch.distributed``.

Needs the standard library only, and touches torch only once the job itself has imported it.
It changes no argument, no result and no order of calls; whatever goes wrong in here switches
it off, is written down for the watching process and leaves the job alone. What the times mean
is decided there.
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

COLLECTIVES = "torch.distributed.distributed_c10d"
DDP = "torch.nn.parallel.distributed"
OPTIMIZER = "torch.optim.optimizer"
FUNCTIONS = [  # of torch.distributed; what a version lacks is left out
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_gather_coalesced",
    "all_gather_object",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
]
MOST_CALLS = 1 << 14  # that have a number at a time; then numbers are given anew
LIMIT_BYTES = 1 << 20  # held back while the watching process does not read; then records are lost
SEND_EVERY_NS = 100_000_000  # at least, if anything is called
LAST_WORD_S = 1.0


class CallRecorder:
    """Sends lines to the watching process without ever waiting for it."""

    def __init__(self, socket_path: str, keep_fault: Callable[[], None]) -> None:
        self._path = socket_path
        self.keep_fault = keep_fault
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0  # who connected: a forked child makes its own connection
        self._broken = False
        self._sent_ns = 0
        self._unsent = bytearray()
        self._num_lost = 0  # records that found no room, since the last one that did
        self._calls: dict[tuple[str, str, int], int] = {}
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def record(self, op: str, group: str, size: int, enter_ns: int, leave_ns: int) -> None:
        try:
            with self._lock:
                if self._ready():
                    self._write(op, group, size, enter_ns, leave_ns)
                    # Once an iteration is enough: each time wakes the watching process up.
                    if op == "step" or leave_ns - self._sent_ns > SEND_EVERY_NS:
                        self._sent_ns = leave_ns
                        self._send()
        except Exception:  # e.g. the watching process has gone
            self._broken = True
            self.keep_fault()

    def _ready(self) -> bool:
        if self._broken:
            return False
        if self._pid == os.getpid() and len(self._unsent) > LIMIT_BYTES:
            self._num_lost += 1
            self._send()
            return False
        if self._pid != os.getpid():
            c10d = sys.modules[COLLECTIVES]
            if not c10d.is_initialized():
                return False
            self._connect(c10d.get_rank(), c10d.get_world_size())
        return True

    def _connect(self, rank: int, world_size: int) -> None:
        self._pid, self._sent_ns = os.getpid(), 0
        self._calls.clear()
        self._num_lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)  # a queue that is full is an error, and ends the watching
        self._socket.connect(self._path)
        self._unsent = bytearray(f"rank {rank} {world_size} {self._pid}\n".encode())

    def _write(self, op: str, group: str, size: int, enter_ns: int, leave_ns: int) -> None:
        self._tell_lost()
        call = (op, group, size)
        number = self._calls.get(call)
        if number is None:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
            number = self._calls[call] = len(self._calls)
            self._unsent += f"call {number} {op} {group or '-'} {size}\n".encode()
        self._unsent += f"{number} {enter_ns} {leave_ns}\n".encode()

    def _tell_lost(self) -> None:
        if self._num_lost:
            self._unsent += f"lost {self._num_lost}\n".encode()
            self._num_lost = 0

    def _send(self) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            sent = self._socket.send(self._unsent)
            del self._unsent[:sent]

    def last_word(self) -> None:
        """At the end of the process: what is still unsent."""
        try:
            if self._socket is not None and self._pid == os.getpid() and not self._broken:
                self._tell_lost()
                self._socket.settimeout(LAST_WORD_S)
                self._socket.sendall(self._unsent)
        except Exception:
            self.keep_fault()


class Hooks:
    """What is put around the functions of torch."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder
        self._inside = threading.local()  # only the outermost call counts
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._training_thread = 0

    @contextlib.contextmanager
    def _faults_kept(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._recorder.keep_fault()

    def timed(self, function: Callable[..., Any], op: str) -> Callable[..., Any]:
        inside, record = self._inside, self._recorder.record
        keep_fault = self._recorder.keep_fault

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "on", False):
                return function(*args, **kwargs)
            inside.on = True
            enter_ns = time.monotonic_ns()
            try:
                result = function(*args, **kwargs)
            finally:
                inside.on = False
            leave_ns = time.monotonic_ns()
            group, size = described(op, args, kwargs, keep_fault)
            record(op, group, size, enter_ns, leave_ns)
            return result

        return call

    def on_collectives(self, module: ModuleType) -> None:
        for name in FUNCTIONS:
            if hasattr(module, name):
                setattr(module, name, self.timed(getattr(module, name), name))
        work: Any = vars(module)["Work"]
        work.wait = self.timed(work.wait, "wait")

    def on_ddp(self, module: ModuleType) -> None:
        """DDP reduces gradients below Python; its own timers say when, once they are on."""
        cls: Any = vars(module)["DistributedDataParallel"]
        init = cls.__init__

        @functools.wraps(init)
        def watched_init(model: Any, *args: Any, **kwargs: Any) -> None:
            init(model, *args, **kwargs)
            with self._faults_kept():
                # Timers of other devices would make the host wait for the device.
                if next(model.parameters()).device.type == "cpu":
                    model.reducer._set_ddp_runtime_logging_sample_rate(1)
                    self._models[model] = 0  # end of its last reduction that was recorded
                    self._training_thread = threading.get_ident()

        cls.__init__ = watched_init

    def on_optimizer(self, module: ModuleType) -> None:
        """A step of an optimizer marks an iteration, and the gradients are reduced before it."""
        vars(module)["register_optimizer_step_pre_hook"](self.before_step)
        vars(module)["register_optimizer_step_post_hook"](self.after_step)

    def before_step(self, *_: Any) -> None:
        with self._faults_kept():
            # An optimizer that runs inside of the reduction would wait for itself.
            in_backward = sys.modules["torch"]._C._current_graph_task_id() != -1
            if threading.get_ident() == self._training_thread and not in_backward:
                for model in list(self._models):
                    self._record_reduction(model)

    def after_step(self, *_: Any) -> None:
        with self._faults_kept():
            c10d = sys.modules.get(COLLECTIVES)
            if c10d is not None and c10d.is_initialized():
                now_ns = time.monotonic_ns()
                self._recorder.record("step", "", 0, now_ns, now_ns)

    def _record_reduction(self, model: Any) -> None:
        model.logger.set_runtime_stats_and_log()
        stats = model.logger._get_ddp_logging_data().ints_map
        leave_ns = stats["backward_comm_time_end"]
        if leave_ns > self._models[model]:
            self._models[model] = leave_ns
            # The last gradient is there: from here on this rank waits. (The wall clock is torch's.)
            shift_ns = time.monotonic_ns() - time.time_ns()
            enter_ns = min(stats["backward_compute_time_end"], leave_ns)
            size = stats["total_parameter_size_bytes"]
            times = (enter_ns + shift_ns, leave_ns + shift_ns)
            self._recorder.record("gradients", "", size, *times)


def described(
    op: str, args: Sequence[Any], kwargs: dict[str, Any], keep_fault: Callable[[], None]
) -> tuple[str, int]:
    """The group of a call, with the peer of a message; and the bytes of its tensors."""
    if op == "wait":  # its own argument is a handle
        return "", 0
    try:
        group, size = "", 0
        for value in (*args, *kwargs.values()):
            group = getattr(value, "group_name", group)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                tensor: Any = getattr(item, "tensor", item)  # P2POp has one
                if hasattr(tensor, "element_size"):
                    size += tensor.numel() * tensor.element_size()
        peers = (kwargs.get(name) for name in ("dst", "src", "group_dst", "group_src"))
        peer = next((peer for peer in peers if isinstance(peer, int)), None)
        if peer is None and len(args) > 1 and isinstance(args[1], int):
            peer = args[1]
        return ("" if group is None else str(group)) + ("" if peer is None else f"@{peer}"), size
    except Exception:
        keep_fault()
        return "", 0


class _Finder(importlib.abc.MetaPathFinder):
    """Lets a module load as always, then calls what waits for it."""

    def __init__(
        self, waiting: dict[str, Callable[[ModuleType], None]], keep_fault: Callable[[], None]
    ) -> None:
        self._waiting, self._keep_fault = waiting, keep_fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        then = self._waiting.pop(fullname, None)
        if then is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, then, self._keep_fault)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(
        self, loader: Any, then: Callable[[ModuleType], None], keep_fault: Callable[[], None]
    ) -> None:
        self._loader, self._then, self._keep_fault = loader, then, keep_fault

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            self._then(module)
        except Exception:  # e.g. a version of torch that has other names
            self._keep_fault()


def install(socket_path: str, keep_fault: Callable[[], None]) -> None:
    """``keep_fault``: writes down the error that is being handled."""
    if any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        return  # a watch inside of a watch: the inner one sees it all
    recorder = CallRecorder(socket_path, keep_fault)
    hooks = Hooks(recorder)
    atexit.register(recorder.last_word)
    waiting: dict[str, Callable[[ModuleType], None]] = {
        COLLECTIVES: hooks.on_collectives,
        DDP: hooks.on_ddp,
        OPTIMIZER: hooks.on_optimizer,
    }
    sys.meta_path.insert(0, _Finder(waiting, keep_fault))
