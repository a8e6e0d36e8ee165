"""Which holder of a stage writes which checkpoint part, and when; the others tell what they have.

How a part is written is the saver's. Orders to save come from the control thread as well.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import EpochPast
from holdfast.protocol import messages
from holdfast.runtime.link.lease import Lease
from holdfast.runtime.stage.named_tensors import hashes_by_layer
from holdfast.runtime.state.saving import SaveTimes, StageSaver, Written
from holdfast.runtime.state.stage_state import OPTIMIZER
from holdfast.runtime.state.state_keeping import StateKeeping
from holdfast.runtime.step.builder import StageParts
from holdfast.storage.places import Places

_LOOK_S = 0.05


class StageSaves:
    """``check`` raises if this worker is to stop. ``reach`` is told when a part is begun."""

    def __init__(
        self,
        me: WorkerId,
        built: StageParts,
        saver: StageSaver,
        times: SaveTimes,
        config: RunConfig,
        *,
        tell: Callable[[messages.Message], None],
        check: Callable[[], None],
        reach: Callable[[int, str], None],
    ) -> None:
        self.me, self.saver, self.state = me, saver, built.state
        self.times = times
        self._built, self._config = built, config
        self._tell, self._check, self._reach = tell, check, reach
        self._writers: Mapping[int, Mapping[int, str]] = {}  # of versions that are saved once more
        self._ended: EpochSaves | None = None  # all its steps are done, and nothing is begun since

    def enter(self, *, is_first_holder: bool, end_step: int) -> "EpochSaves":
        self._ended = None
        return EpochSaves(self, is_first_holder, end_step)

    def once(self, order: messages.SaveOnce) -> None:
        """From the control thread. At the end of a run nobody changes the state any more."""
        self._writers = {**self._writers, order.step: order.writers}
        self.times.once(order.step)
        ended = self._ended
        if ended is not None and ended.end_step == order.step and ended.is_writer(order.step):
            ended.save(order.step, is_last=True)

    def ended(self, epoch: "EpochSaves") -> None:
        """The last version, also of a run that ends early: then it is to be resumed."""
        version = epoch.end_step
        self._wait_for_saver()
        cut_short = version < self._config.train.steps
        is_wanted = self._config.checkpoint.at_end or cut_short
        if is_wanted or self.times.is_due(version):
            epoch.save(version, is_last=is_wanted)
        if not self._wait_for_saver():
            self.saver.give_up(version)
        self._ended = epoch

    def writer_of(self, version: int) -> str | None:
        """None: none was chosen."""
        return self._writers.get(version, {}).get(self._built.number)

    def write(self, version: int, *, is_last: bool) -> None:
        def done(written: Written) -> None:
            part = messages.CheckpointPart(
                worker=str(self.me),
                step=version,
                directory=written.directory,
                layers=list(self._built.layers),
                digests=written.digests,
                sizes=written.sizes,
                hashes=written.hashes,
                state={OPTIMIZER: self._built.optimizer.kind},
                took_s=written.took_s,
                copy_s=written.copy_s,
            )
            self._tell(part)

        self.saver.save(version, self.state, done, is_last=is_last)
        self._reach(version - 1, "save")

    def tell_hashes(self, version: int) -> None:
        """Taken at once: a copy for later would take longer, and memory."""
        hashes = hashes_by_layer(self.state.live_tensors())
        self._tell(messages.StateHashes(worker=str(self.me), step=version, hashes=hashes))

    def _wait_for_saver(self) -> bool:
        """Far longer than on the way: nothing is left to do, and what is not written is lost."""
        until_s = time.monotonic() + self._config.checkpoint.write_limit_s
        while not self.saver.wait(_LOOK_S):
            self._check()
            if time.monotonic() > until_s:
                return False
        return True


@dataclass(frozen=True)
class EpochSaves:
    """Of one epoch: who is the first holder of the stage, and which version is the last."""

    stage: StageSaves
    is_first_holder: bool
    end_step: int

    def save_if_due(self, version: int) -> None:
        if self.stage.times.is_due(version) and version < self.end_step:
            self.save(version)

    def save(self, version: int, *, is_last: bool = False) -> None:
        """One holder of a stage writes it for all; the others say what they have."""
        if not self.is_writer(version) or self.stage.saver.has(version):
            self.stage.tell_hashes(version)
        else:
            self.stage.write(version, is_last=is_last)

    def is_writer(self, version: int) -> bool:
        chosen = self.stage.writer_of(version)
        return self.is_first_holder if chosen is None else chosen == str(self.stage.me)


def stage_saver(
    me: WorkerId,
    keeping: StateKeeping,
    assign: messages.Assign,
    places: Places,
    tell: Callable[[messages.Message], None],
    *,
    lease: Lease,
    check: Callable[[], None],
) -> StageSaver:
    """Writes only while this worker has its lease."""

    def failed(version: int, reason: str) -> None:
        tell(messages.PartFailed(worker=str(me), step=version, reason=reason))

    def unless_past() -> None:
        with suppress(EpochPast):  # what is written outlives an epoch
            check()

    saver = keeping.saver(places.store(), assign.part, assign.wait_s, failed)
    saver.may_write = partial(lease.wait, unless_past)
    return saver
