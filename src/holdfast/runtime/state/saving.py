"""A stage's share of a checkpoint: copied at a step's end, written while training goes on.

A large one is not copied: training goes on until its next update, which waits for the writing.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.errors import HoldfastError
from holdfast.protocol.records import SaveRule
from holdfast.runtime.link.control_link import Stopped
from holdfast.runtime.stage.named_tensors import hashes_by_layer
from holdfast.runtime.state.stage_state import StageState
from holdfast.storage.checkpoint import write_part
from holdfast.storage.store import PartStore

PAUSES_S = (0.5, 1.0)  # between tries of a part on the way ...
COPIED_BYTES = 256 << 20  # larger states are written from where they are
LAST_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # ... and of the last one, after which nothing comes


class Written(NamedTuple):
    """A part that is on disk, or wherever checkpoints are kept."""

    directory: str
    digests: dict[str, str]
    sizes: dict[str, int]
    hashes: dict[str, str]  # of each layer's state
    took_s: float  # for all of it
    copy_s: float  # the first part of that: until training could go on changing the state


Done = Callable[[Written], None]
OnFailed = Callable[[int, str], None]  # version, reason in one line


class SaveTimes:
    """Which versions are saved. Rules are only added, and those of all workers are the same."""

    def __init__(self, every: int, first: int = 0) -> None:
        """``every`` 0: none. ``first``: one version more, before those; 0: none."""
        self._rules: tuple[SaveRule, ...] = (SaveRule(0, every),)
        self._once = {first} if every and first else set[int]()

    def change(self, rules: Sequence[SaveRule]) -> None:
        """Each counts from its first version on, up to the next one's.

        May be called from any thread. An older list, which comes late, is shorter.
        """
        if len(rules) + 1 >= len(self._rules):
            self._rules = (self._rules[0], *rules)

    def once(self, version: int) -> None:
        """One version more. May be called from any thread."""
        self._once = self._once | {version}

    def is_due(self, version: int) -> bool:
        if version in self._once:
            return True
        first, every = next(rule for rule in reversed(self._rules) if rule.first <= version)
        return bool(every) and (version - first) % every == 0


class StageSaver:
    """Writes one part at a time; a new one waits for the one before, so disks can set the pace.

    What cannot be written is tried again, then told to ``failed``; nothing is raised: the state is
    in memory, and training goes on.
    """

    def __init__(self, store: PartStore, name: str, limit_s: float, failed: OnFailed) -> None:
        """``name``: of the directory for its parts, which nobody else writes to."""
        self._store = store
        self.name = name
        self._limit_s = limit_s
        self._failed = failed
        self.may_write: Callable[[], None] = lambda: None  # waits, or raises: it is to be given up
        self._thread: threading.Thread | None = None
        self._reads_live = False  # the thread writes tensors that the next update changes
        self._changed: int | None = None  # version that was changed while it was written
        self.newest = 0  # version that was written here, or is being written
        self.others = 0  # the same of other holders of the stage

    def has(self, version: int) -> bool:
        return max(self.newest, self.others) >= version

    def save(self, step: int, state: StageState, done: Done, *, is_last: bool = False) -> None:
        """``state``: as it is now. ``done`` is called from the writing thread."""
        live = state.live_tensors()
        if sum(tensor.nbytes for tensor in live.values()) <= COPIED_BYTES:
            self.write(step, state.tensors(), done, is_last=is_last)
        elif self.wait():
            self._begin(step, lambda: live, done, is_last)
            self._reads_live = True
        else:
            self.give_up(step)

    def write(
        self, step: int, tensors: Mapping[str, Tensor], done: Done, *, is_last: bool = False
    ) -> None:
        """``tensors``: copies that nobody changes."""
        if self.wait():
            self._begin(step, lambda: tensors, done, is_last)
        else:
            self.give_up(step)

    def give_up(self, step: int) -> None:
        self._failed(step, f"{self.name} is still being written; is the storage stuck?")

    def _begin(
        self, step: int, take: Callable[[], Mapping[str, Tensor]], done: Done, is_last: bool
    ) -> None:
        before, self.newest = self.newest, step

        def run() -> None:
            try:
                written = self._write(step, take, LAST_PAUSES_S if is_last else PAUSES_S)
            except BaseException as why:  # torch's own error of a checkpoint is no Exception
                self.newest = before
                reason = _in_one_line(why)
                self._tell(lambda: self._failed(step, reason))
            else:
                self._tell(lambda: done(written))

        thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as why:  # no thread to be had
            self._without_thread(run, step, before, why, is_last)
        else:
            self._thread = thread

    def _without_thread(
        self, run: Callable[[], None], step: int, before: int, why: Exception, is_last: bool
    ) -> None:
        """The last part is written here: training is over. Any other is not worth its wait."""
        if is_last:
            run()
        else:
            self.newest = before
            self._failed(step, _in_one_line(why))

    def before_update(self) -> None:
        """Called before the weights change: a saver that still reads them makes it wait."""
        if self._reads_live:
            self._reads_live = False
            if not self.wait():
                self._changed = self.newest

    @staticmethod
    def _tell(tell: Callable[[], None]) -> None:
        with suppress(HoldfastError, Stopped):  # the run is over: the worker's own thread knows
            tell()

    def _write(
        self, step: int, take: Callable[[], Mapping[str, Tensor]], pauses_s: Sequence[float]
    ) -> Written:
        """Raises what went wrong the last time it was tried."""
        start_s = time.monotonic()
        tensors = take()
        copy_s = time.monotonic() - start_s
        hashes = hashes_by_layer(tensors)
        folder = self._store.staging(step, self.name)
        pauses = iter(pauses_s)
        while True:
            self.may_write()
            try:
                digests = write_part(folder, tensors)
                sizes = {name: (folder / name).stat().st_size for name in digests}
                self.may_write()
                if self._changed == step:
                    raise HoldfastError(f"{self.name} took too long to write; is the storage slow?")
                self._store.put_part(step, self.name, digests)
                took_s = time.monotonic() - start_s
                return Written(self.name, digests, sizes, hashes, took_s, copy_s)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # it takes room that others need
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                time.sleep(pause_s)

    @property
    def is_busy(self) -> bool:
        thread = self._thread  # once: another thread may take it away
        return thread is not None and thread.is_alive()

    def wait(self, limit_s: float | None = None) -> bool:
        """Until the last part is on disk, or given up; False: it is still being written."""
        if self._thread is not None:
            self._thread.join(self._limit_s if limit_s is None else limit_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True


def _in_one_line(why: BaseException) -> str:
    if isinstance(why, CheckpointException):  # it holds what went wrong, once for each rank
        why = next((each for each, _ in why.failures.values()), why)
    cause: BaseException | None = why
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    [*_, last] = str(why).strip().splitlines() or [type(why).__name__]
    return last
