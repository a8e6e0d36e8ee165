"""A device that is not there: operations take a set time by sleeping, on a tiny real model.

Processes, transport, schedule and sums are real; only the arithmetic is small. Figures made
with it are emulated and must say so.
"""

import ctypes
import time
from collections.abc import Mapping

from holdfast.device.processor import PROCESSOR, Device
from holdfast.schedule.operation import Kind

_PR_SET_TIMERSLACK = 29


class EmulatedDevice:
    """With no durations it does nothing: operations take the time of the ``real`` one."""

    def __init__(self, durations_s: Mapping[str, float], real: Device = PROCESSOR) -> None:
        self.real = real
        self._durations_s = {Kind(kind): seconds for kind, seconds in durations_s.items()}
        if durations_s:  # sleeps end 0.03 instead of 0.08 ms late
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    @property
    def is_emulated(self) -> bool:
        return bool(self._durations_s)

    def finish(self, kind: Kind, start_s: float) -> None:
        """Sleep until the operation that began at ``start_s`` has taken its time."""
        left_s = start_s + self._durations_s.get(kind, 0.0) - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
