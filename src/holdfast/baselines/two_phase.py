"""CheckFreq's checkpoint in two phases: copied beside the next step's work, then written.

The copy is taken by a thread, and only the next change of the weights has to wait for it: whoever
makes one says so first. When to save, and what, is decided elsewhere.
"""

import threading
import time
from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from holdfast.baselines.save_interval import num_profiled
from holdfast.errors import HoldfastError
from holdfast.runtime.state.saving import Done, OnFailed, SaveTimes, StageSaver
from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.storage.store import PartStore


class TwoPhaseSaver(StageSaver):
    """At most one checkpoint at a time: a new one waits until the one before is on disk."""

    def __init__(self, store: PartStore, name: str, limit_s: float, failed: OnFailed) -> None:
        super().__init__(store, name, limit_s, failed)
        self._copied = threading.Event()
        self._copied.set()
        self.stalled_s = 0.0  # that updates have waited for copies, in all
        self.num_bytes = 0  # copied so far, in all

    @override
    def save(self, step: int, state: StageState, done: Done, *, is_last: bool = False) -> None:
        self.write_live(step, state.live_tensors(), done, is_last=is_last)

    def write_live(
        self, step: int, live: Mapping[str, Tensor], done: Done, *, is_last: bool = False
    ) -> None:
        """``live``: the tensors themselves. They must not change before ``before_update``."""
        if not self.wait():
            self._failed(step, f"{self.name} is still being written; is the storage stuck?")
            return
        self._copied.clear()

        def copy() -> Mapping[str, Tensor]:
            try:
                return {name: tensor.clone().cpu() for name, tensor in live.items()}
            finally:
                self._copied.set()

        self._begin(step, copy, done, is_last)
        if self._thread is None:
            self._copied.set()  # nobody takes one
        self.num_bytes += sum(tensor.nbytes for tensor in live.values())

    @override
    def before_update(self) -> None:
        """Returns when no copy is being taken."""
        if self._copied.is_set():
            return
        start_s = time.monotonic()
        if not self._copied.wait(self._limit_s):
            raise HoldfastError(
                f"the state of {self.name} is not copied after {self._limit_s:g} s: "
                "is this machine out of memory?"
            )
        self.stalled_s += time.monotonic() - start_s


class SavesInTwoPhases(StateKeeping):
    @override
    def times(self) -> SaveTimes:
        """Until the coordinator has chosen an interval. None is early: it would be profiled."""
        return SaveTimes(num_profiled(self._config))

    @override
    def saver(self, store: PartStore, name: str, limit_s: float, failed: OnFailed) -> StageSaver:
        return TwoPhaseSaver(store, name, limit_s, failed)
