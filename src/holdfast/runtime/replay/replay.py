"""A stage that nobody holds any more is computed again: its last checkpoint, then step by step.

What came over its boundaries is read from the log, so nobody else computes anything again. The
micro-batches of each step are lanes of a crew, which sums its gradients exactly: the state
has the bits of the one that was lost. Neighbouring stages are replayed as one stage.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.data.batches import Batches
from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import CheckpointError
from holdfast.faults.injection import Injector
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchLoss, StepLosses
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.job.loading import loading
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.runtime.replay.far_reading import far_logs
from holdfast.runtime.replay.logged import LoggedBoundary, LoggedTies, LoggedVerdicts, MissingLog
from holdfast.runtime.state.boundary_log import BoundaryLog
from holdfast.runtime.state.stage_state import OPTIMIZER
from holdfast.runtime.step.builder import Builder
from holdfast.runtime.step.ending import StepEnding
from holdfast.runtime.step.epoch import Epoch
from holdfast.runtime.step.executor import EpochPlan, Executor, StepBegins, StepSettled
from holdfast.runtime.step.ledger import Ledger
from holdfast.runtime.step.operations import StageOperations
from holdfast.runtime.update.commit import Committed
from holdfast.schedule.cut import stage_ranges
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Lane, Schedule
from holdfast.storage.checkpoint import write_part
from holdfast.storage.log.reader import LogReader
from holdfast.storage.log.sources import DiskLogs, LogSource
from holdfast.storage.manifest import Checkpoint, Part, write_manifest
from holdfast.storage.places import Places
from holdfast.transport.base import Transport
from holdfast.weights.starting import StartingWeights

_STEPS_TOLD = 2  # of the last ones somebody may not have heard the losses


@dataclass(frozen=True)
class _ReplayedEnding(StepEnding):
    """Nobody works with a state that the job's optimizer has left half-way."""

    code: JobCode = field(kw_only=True)

    def commit_step(self) -> Committed:
        with self.code.guarded(self.commit.reduced - 1, "the optimizer"):
            return super().commit_step()


class Replayer:
    def __init__(
        self,
        order: messages.Replay,
        *,
        me: WorkerId,
        places: Places,
        config: RunConfig,
        job: Job,
        batches: Batches,
        transport: Transport,
        check: Callable[[], None],
        reach: Callable[[int, str], None],
        log: BoundaryLog,
        own_host: str,
        may_write: Callable[[], None] = lambda: None,
        weights: StartingWeights | None = None,
        device: Device = PROCESSOR,
    ) -> None:
        """``check`` raises when this worker is to stop, ``may_write`` waits until it may write or
        raises; ``log``: its own, for what no log has."""
        self._order, self._me, self._config, self._places = order, me, config, places
        self._transport, self._reach, self._log = transport, reach, log
        self._own_host = own_host
        self._crew = [parse_worker(name) for name in order.crew]
        self._ranges = stage_ranges(order.cut, len(job.layers))
        self._code, self._may_write, self._device = JobCode(check), may_write, device
        builder = Builder(job, config, order.cut, self._code, weights, device)
        self._built = builder.build(order.stages, first_step=order.first_step, keeps_old=False)
        self._operations = StageOperations(
            self._built, loading(batches, config.data, self._code), self._code
        )
        if order.checkpoint:
            self._built.state.load_checkpoint(*places.open_state(order.checkpoint))

    def run(self) -> messages.Replayed:
        """LogGap if the log does not reach so far, JobError if the job's own code raises.

        EpochPast and PeerLost break it off.
        """
        start_s, order = time.monotonic(), self._order
        roots = (self._places.log_root(), self._places.log_mirror)
        far = far_logs(self._places, order, self._own_host, tls=self._config.network.tensor_tls)
        copies = [DiskLogs(root) for root in self._places.log_copies().values()]
        losses: list[StepLosses] = []
        more: list[LogSource] = [*copies, *far]
        with (
            closing(self._operations),
            LogReader.open(*roots, order.log.run, order.log.workers, more) as reader,
        ):
            verdicts = LoggedVerdicts(reader)
            for happened in self._executor(reader, verdicts).run():
                match happened:
                    case StepBegins(step):
                        self._reach(step, "replay")
                        verdicts.of(step)  # a gap shows before the step is computed
                    case StepSettled(committed):
                        losses += self._told(committed)
            num_bytes = reader.num_bytes
        if self._me == self._crew[0]:
            self._may_write()
            self._write()
        return messages.Replayed(
            worker=str(self._me),
            epoch=order.epoch,
            num_operations=self._num_operations,
            num_bytes=num_bytes,
            took_s=time.monotonic() - start_s,
            losses=losses,
        )

    @property
    def _num_operations(self) -> int:
        """F, B and W of every micro-batch of this worker, at every stage and in every step."""
        num_steps = self._order.version - self._order.first_step
        return 3 * len(self._order.stages) * len(self._share(self._me)) * num_steps

    # --- lanes ---

    def _plan(self) -> EpochPlan:
        order = self._order
        shape = Shape(1, len(self._ranges), self._config.parallel.microbatches)
        lanes = RunningStep.whole(0, 0, Schedule(shape, {w: self._lane(w) for w in self._crew}))
        return EpochPlan(
            self._me,
            (),
            lambda step: lanes,
            first_step=order.first_step,
            end_step=order.version,
        )

    def _share(self, worker: WorkerId) -> range:
        """Micro-batches go to the crew in turn."""
        place, num = self._crew.index(worker), len(self._crew)
        return range(place, self._config.parallel.microbatches, num)

    def _lane(self, worker: WorkerId) -> Lane:
        stage = self._built.number
        kinds = (Kind.F, Kind.BW)
        ops = [Op(stage, kind, number) for number in self._share(worker) for kind in kinds]
        return (*ops, Op(stage, Kind.R))

    def _executor(self, reader: LogReader, verdicts: LoggedVerdicts) -> Executor:
        order, built = self._order, self._built
        if self._config.optimizer.mode == "staggered" and order.first_step != order.log.began:
            before = order.first_step - 1
            built.commit.verdicts = {before: verdicts.of(before)}
        log = MissingLog(reader, self._log, order.log.boundaries, built.parts, built.number)
        return Executor(
            self._plan(),
            self._operations,
            LoggedBoundary(reader, log, order.stages),
            _ReplayedEnding(
                self._epoch(reader), built.state, built.commit, verdicts, log, code=self._code
            ),
            ledger=Ledger(),
            injector=Injector((), lambda *_: None),
            device=self._emulated(),
            check=self._code.check,
        )

    def _epoch(self, reader: LogReader) -> Epoch:
        built, own = self._built, self._built.number
        stages = dict.fromkeys(self._crew, own)
        ties = LoggedTies(reader, built.parts, own)
        wait_s = self._order.wait_s
        return Epoch(self._me, own, stages, self._transport, built.parts, wait_s, ties)

    def _emulated(self) -> EmulatedDevice:
        """As long as the stages take one after the other."""
        durations_s, num = self._config.device.durations_s(), len(self._order.stages)
        return EmulatedDevice(
            {k: num * s for k, s in durations_s.items() if k != Kind.R}, self._device
        )

    def _told(self, committed: Committed) -> list[StepLosses]:
        step, totals = committed.step, committed.result.totals
        if not self._built.is_last or step < self._order.version - _STEPS_TOLD:
            return []
        losses = [MicrobatchLoss(*row) for row in totals.rows()]
        return [StepLosses(step, losses, totals.num_tokens)]

    # --- the end ---

    def _write(self) -> None:
        order, built = self._order, self._built
        into = Path(order.into)
        try:
            into = self._places.new_state(order.into)
            tensors = built.state.tensors()
            parts = [self._write_part(into, stage, tensors) for stage in order.lost]
            train, parallel = self._config.train, self._config.parallel
            write_manifest(
                Checkpoint(
                    str(into), order.version, train.seed, parallel.microbatches, tuple(parts)
                )
            )
            self._places.put_state(order.into, {part.directory: part.files for part in parts})
        except (OSError, CheckpointException) as why:
            [*_, reason] = str(why).strip().splitlines() or [type(why).__name__]
            raise CheckpointError(
                f"the rebuilt state cannot be written to {into}: {reason}"
            ) from why

    def _write_part(self, into: Path, stage: int, tensors: dict[str, Tensor]) -> Part:
        layers = self._ranges[stage]
        own = {k: v for k, v in tensors.items() if int(k.partition(".")[0]) in layers}
        name = f"stage-{stage}"
        digests = write_part(into / name, own)
        return Part(name, tuple(layers), digests, {OPTIMIZER: self._built.optimizer.kind})
