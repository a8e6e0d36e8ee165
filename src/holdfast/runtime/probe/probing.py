"""Short benchmarks between two steps: of this worker's own arithmetic, and of its links.

Each is compared elsewhere with what the same worker or link took before. A tensor sent as a
probe is timed by whoever gets it, so nobody waits for one.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from holdfast.cluster import WorkerId, parse_worker
from holdfast.device.processor import Device
from holdfast.errors import PeerLost
from holdfast.protocol import messages
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.schedule.operation import Kind
from holdfast.transport.base import Channel, Tag, Transport

_SIDE = 256  # of the matrices
_NUM_PRODUCTS = 20  # about 20 ms: longer than a turn on a shared processor
EMULATED_FORWARDS = 2
_LINK_BYTES = 1 << 12  # more would hold up the training itself on a link that is nearly dead
_NUM_TENSORS = 3  # a link


class Prober:
    """Ordered from the control thread, carried out by the worker's own at the start of a step."""

    def __init__(
        self,
        me: WorkerId,
        transport: Transport,
        device: EmulatedDevice,
        slowdown: Callable[[float], float],
        tell: Callable[[messages.Message], None],
    ) -> None:
        """``slowdown``: seconds that an injected fault adds to this much work."""
        self._me, self._transport, self._device = me, transport, device
        self._slowdown, self._tell = slowdown, tell
        self._lock = threading.Lock()
        self._compute_from: int | None = None  # step
        self._links: dict[int, list[WorkerId]] = {}  # step -> whom to send to

    def order(self, probe: messages.Probe) -> None:
        with self._lock:
            if probe.compute:
                self._compute_from = probe.step
            for link in probe.links:
                self._links.setdefault(probe.step + link.after, []).append(parse_worker(link.to))

    def forget(self) -> None:
        """Others are members now: links that were to be measured may be no more."""
        with self._lock:
            self._links.clear()

    def begin_step(self, step: int) -> None:
        if self._compute_from is None and not self._links:
            return
        with self._lock:
            due = [number for number in self._links if number <= step]
            peers = [peer for number in due for peer in self._links.pop(number)]
            measures = self._compute_from is not None and self._compute_from <= step
            if measures:
                self._compute_from = None
        for peer in peers:
            self._send(peer, step)
        if measures:
            self._tell(self._benchmark(step))

    def _send(self, peer: WorkerId, step: int) -> None:
        tensor = torch.zeros(_LINK_BYTES, dtype=torch.uint8)
        for part in range(_NUM_TENSORS):
            with suppress(PeerLost):  # whoever needs the peer will notice
                self._transport.send(peer, Tag(Channel.PROBE, step, part=part), tensor)

    def _benchmark(self, step: int) -> messages.Probed:
        start_s, cpu_s = time.monotonic(), time.thread_time()
        if self._device.is_emulated:
            for _ in range(EMULATED_FORWARDS):
                self._device.finish(Kind.F, time.monotonic())
        else:
            _multiply(self._device.real)
        more_s = self._slowdown(time.monotonic() - start_s)
        if more_s > 0:
            time.sleep(more_s)
        return messages.Probed(
            worker=str(self._me),
            step=step,
            wall_s=time.monotonic() - start_s,
            cpu_s=time.thread_time() - cpu_s,
        )


def _multiply(device: Device) -> None:
    """Of ones: the job's random numbers are left alone."""
    matrix = torch.ones(_SIDE, _SIDE, device=device.torch_device)
    result = torch.empty_like(matrix)
    for _ in range(_NUM_PRODUCTS):
        torch.mm(matrix, matrix, out=result)
    device.synchronize()
