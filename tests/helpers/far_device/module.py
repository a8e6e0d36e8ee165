"""torch.far: what is asked of torch.cuda. Streams, events, random numbers, memory."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Stream:
    """Late copies, in order: made as soon as somebody waits for them, and not before."""

    def __init__(self, device: Any = None) -> None:
        self._late: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    def add(self, copy: Callable[[], object]) -> None:
        with self._lock:
            self._late.append(copy)

    def synchronize(self) -> None:
        with self._lock:
            while self._late:
                self._late.pop(0)()

    def wait_stream(self, other: "Stream") -> None:
        """Kernels do not wait, so what they would wait for is done at once."""
        if self is not other:
            other.synchronize()


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._enable_timing, self._stream, self._at_s = enable_timing, None, 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._stream, self._at_s = stream, time.perf_counter()

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        """In milliseconds, as torch has it."""
        assert self._enable_timing
        return 1000 * (other._at_s - self._at_s)


class FarModule:
    """``counts``: transfers each way, kernels, and waits for the device."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_here = True  # False: torch finds none
        self.largest_bytes: int | None = None  # a larger tensor does not fit
        self.largest_seen_bytes = 0
        self.total_bytes = 1 << 30
        self.generator = torch.Generator()
        self.drawing = threading.RLock()
        self._own = threading.local()
        self._usual = Stream()

    # --- devices ---

    def is_available(self) -> bool:
        return self.is_here

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        assert device in (0, torch.device("far", 0)), device

    def get_device_properties(self, device: Any = 0) -> Any:
        return SimpleNamespace(name="made of the processor", multi_processor_count=1)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    # --- streams ---

    def current_stream(self, device: Any = None) -> Stream:
        return getattr(self._own, "stream", self._usual)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._own.stream = stream
        try:
            yield
        finally:
            self._own.stream = before

    def synchronize(self, device: Any = None) -> None:
        self.counts["waits"] += 1

    # --- random numbers ---

    def manual_seed(self, seed: int) -> None:
        with self.drawing:
            self.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        self.generator.set_state(state)

    # --- memory ---

    def check_fits(self, tensor: Tensor) -> None:
        self.largest_seen_bytes = max(self.largest_seen_bytes, tensor.nbytes)
        if self.largest_bytes is not None and tensor.nbytes > self.largest_bytes:
            raise torch.OutOfMemoryError(
                f"far out of memory. Tried to allocate {tensor.nbytes} bytes."
            )

    def memory_allocated(self, device: Any = 0) -> int:
        return self.largest_bytes or 0

    def max_memory_allocated(self, device: Any = 0) -> int:
        """Of one tensor: enough to see that somebody asks."""
        return self.largest_seen_bytes

    def mem_get_info(self, device: Any = 0) -> tuple[int, int]:
        return 0, self.total_bytes


FAR = FarModule()
