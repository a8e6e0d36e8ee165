"""A stage that nobody holds any more is computed again: its last checkpoint, then step by step.

What came over its borders is read from the log, so nobody else computes anything again. The
micro-batches of each step are shared among a crew, which sums its gradients exactly: the state
has the bits of the one that was lost. Neighbouring stages are replayed as one stage.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.batches import Batches, num_tokens
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.errors import CheckpointError
from holdfast.job import Job
from holdfast.protocol import messages
from holdfast.protocol.records import MicrobatchLoss, StepLosses
from holdfast.recovery.checkpoint import write_part
from holdfast.recovery.log_frame import FrameKind
from holdfast.recovery.log_reader import LogReader
from holdfast.recovery.manifest import Checkpoint, Part, write_manifest
from holdfast.recovery.places import Places
from holdfast.runtime.boundary_log import BoundaryLog
from holdfast.runtime.buckets import Bucket, plan_buckets
from holdfast.runtime.built import Builder
from holdfast.runtime.commit import Result
from holdfast.runtime.emulation import EmulatedDevice
from holdfast.runtime.job_code import job_code, pause
from holdfast.runtime.reduction import Given, reduce_gradients
from holdfast.runtime.seeding import DRAWING
from holdfast.runtime.stage_state import OPTIMIZER
from holdfast.runtime.verdict import Verdict
from holdfast.schedule.cut import stage_ranges
from holdfast.schedule.operation import Kind, Op
from holdfast.transport.base import Channel, Tag, Transport

_OPERATIONS = 3  # F, B and W of a micro-batch at a stage
_STEPS_TOLD = 2  # of the last ones somebody may not have heard the losses


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
    ) -> None:
        """``check`` raises when this worker is to stop; ``log``: its own, for what no log has."""
        self._order, self._me, self._config, self._batches = order, me, config, batches
        self._transport, self._check, self._reach = transport, check, reach
        self._log, self._places = log, places
        self._crew = [parse_worker(name) for name in order.crew]
        self._ranges = stage_ranges(order.cut, len(job.layers))
        builder = Builder(job, config, order.cut)
        self._built = builder.build(order.stages, first_step=order.first_step, keeps_old=False)
        if order.checkpoint:
            self._built.state.load_checkpoint(places.state(order.checkpoint))
        durations_s = config.device.durations_s()
        each = {kind: seconds * len(order.stages) for kind, seconds in durations_s.items()}
        self._device = EmulatedDevice(each)
        self._buckets = self._plan_buckets()
        self._losses: list[StepLosses] = []
        self._num_operations = 0

    def run(self) -> messages.Replayed:
        """LogGap if the log does not reach so far, JobError if the job's own code raises.

        EpochPast and PeerLost break it off.
        """
        start_s, order = time.monotonic(), self._order
        log, places = order.log, self._places
        roots = (places.log_dir, places.log_mirror)
        with LogReader.open(*roots, log.run, log.workers) as self._reader:
            for step in range(order.first_step, order.version):
                self._reach(step, "replay")
                self._run_step(step)
            num_bytes = self._reader.num_bytes
        if self._me == self._crew[0]:
            self._write()
        return messages.Replayed(
            worker=str(self._me),
            epoch=order.epoch,
            num_operations=self._num_operations,
            num_bytes=num_bytes,
            took_s=time.monotonic() - start_s,
            losses=self._losses,
        )

    # --- a step ---

    def _run_step(self, step: int) -> None:
        built, attempt = self._built, self._attempt(step)
        verdict = Verdict(*self._reader.verdict(step))
        built.state.begin_step()
        built.parts.sums.clear()
        place = self._crew.index(self._me)
        for microbatch in range(self._config.parallel.microbatches):
            if microbatch % len(self._crew) == place:
                self._check()
                self._run_microbatch(step, attempt, microbatch)
        result = self._reduce(step, attempt)
        built.state.choose_exponents(result.reduced.maxima)
        with job_code(step, "the optimizer", self._check):
            built.commit.follow(result, verdict)
        self._log_ties(result)
        if built.is_last and step >= self._order.version - _STEPS_TOLD:
            totals = result.totals
            losses = [MicrobatchLoss(*one) for one in sorted(totals.losses.items())]
            self._losses.append(StepLosses(step, losses, totals.num_tokens))

    def _attempt(self, step: int) -> int:
        """The one that counted: a step after one that was taken back was tried again."""
        if self._config.optimizer.mode != "staggered" or step == self._order.log.began:
            return 0
        return int(not Verdict(*self._reader.verdict(step - 1)).good)

    def _run_microbatch(self, step: int, attempt: int, microbatch: int) -> None:
        built, first, last = self._built, self._order.stages[0], self._order.stages[-1]
        inputs, target = self._inputs(step, attempt, microbatch)
        gradients: tuple[Tensor, ...] = ()
        if not built.is_last:
            gradients = self._read(FrameKind.GRADIENT, last + 1, step, attempt, microbatch)
        start_s = time.monotonic()
        constants = [i for i, tensor in enumerate(inputs) if not tensor.requires_grad]
        with job_code(step, f"micro-batch {microbatch}", self._check):
            outputs = built.stage.forward(step, microbatch, inputs, target, constants=constants)
            built.parts.sums.add(built.stage.take_buffer_changes(microbatch))
            if built.is_last:
                loss = built.stage.take_loss(microbatch)
                built.parts.sums.add_loss(microbatch, loss, num_tokens(target))
        self._device.finish(Kind.F, start_s)
        self._log_again(step, attempt, Op(last, Kind.F, microbatch), outputs)
        start_s, arrived = time.monotonic(), iter(gradients)
        given = tuple(next(arrived) if out.requires_grad else None for out in outputs)
        with job_code(step, f"micro-batch {microbatch}", self._check):
            back = built.stage.backward(microbatch, given)
        self._device.finish(Kind.BW, start_s)
        present = tuple(gradient for gradient in back if gradient is not None)
        self._log_again(step, attempt, Op(first, Kind.BW, microbatch), present)
        self._num_operations += _OPERATIONS * len(self._order.stages)

    def _inputs(self, step: int, attempt: int, microbatch: int) -> tuple[tuple[Tensor, ...], Any]:
        first, target = self._order.stages[0], None
        loaded: tuple[Tensor, ...] = ()
        if first == 0 or self._built.is_last:
            with job_code(step, f"micro-batch {microbatch}", self._check), DRAWING:
                loaded, target = self._batches.load(
                    step, microbatch, lambda pause_s: pause(pause_s, self._check)
                )
        if first == 0:
            return loaded, target
        return self._read(FrameKind.ACTIVATION, first - 1, step, attempt, microbatch), target

    def _read(
        self, kind: FrameKind, stage: int, step: int, attempt: int, microbatch: int
    ) -> tuple[Tensor, ...]:
        return self._reader.read(kind, stage, step, attempt, microbatch)

    def _log_again(self, step: int, attempt: int, op: Op, tensors: tuple[Tensor, ...]) -> None:
        """What died with its writer must be there when a neighbour is lost next."""
        assert op.microbatch is not None
        forward = op.kind is Kind.F
        border = op.stage if forward else op.stage - 1
        if border not in self._order.log.borders:
            return
        kind = FrameKind.ACTIVATION if forward else FrameKind.GRADIENT
        if not self._reader.has(kind, op.stage, step, attempt, op.microbatch):
            self._log.keep(step, attempt, op, tensors)

    # --- sums ---

    def _plan_buckets(self) -> tuple[Bucket, ...]:
        parts, own = self._built.parts, self._built.number
        holders = {stage: self._crew if stage == own else [] for stage in parts.slots}
        return plan_buckets(own, slots=parts.slots, ties=parts.ties, holders=holders)

    def _is_elsewhere(self, bucket: Bucket) -> bool:
        """A tied parameter that a stage which is not replayed has a twin of."""
        if bucket.number == 0:
            return False
        own = set(self._built.parts.slots[self._built.number])
        return not own.issuperset(self._built.parts.ties[bucket.number - 1])

    def _reduce(self, step: int, attempt: int) -> Result:
        parts, order = self._built.parts, self._order
        reduced = reduce_gradients(
            parts.gradients,
            [bucket for bucket in self._buckets if not self._is_elsewhere(bucket)],
            me=self._me,
            transport=self._transport,
            step=step,
            attempt=attempt,
            timeout_s=order.wait_s,
            given=[self._given(b, step, attempt) for b in self._buckets if self._is_elsewhere(b)],
        )
        tag = Tag(Channel.RESULT, step, attempt)
        totals = parts.sums.totals(self._crew, self._me, self._transport, tag, order.wait_s)
        return Result(step, attempt, reduced, totals)

    def _log_ties(self, result: Result) -> None:
        """Of stages that are replayed together now, but may be lost alone next."""
        reduced = result.reduced
        for bucket in self._buckets:
            number, known = bucket.number, (result.step, result.attempt)
            if number and not self._reader.has(FrameKind.TIED, 0, *known, number):
                slot = bucket.groups[0][0]
                values = reduced.layout.padded(reduced.flat, slot)
                self._log.keep_tied(
                    self._built.number, *known, number, values, reduced.touched[slot]
                )

    def _given(self, bucket: Bucket, step: int, attempt: int) -> Given:
        values, touched = self._reader.tied(bucket.number, step, attempt)
        return bucket, values, touched

    # --- the end ---

    def _write(self) -> None:
        order, built = self._order, self._built
        into = self._places.state(order.into)
        try:
            shutil.rmtree(into, ignore_errors=True)
            tensors = built.state.tensors()
            parts = [self._write_part(into, stage, tensors) for stage in order.lost]
            train, parallel = self._config.train, self._config.parallel
            write_manifest(
                Checkpoint(
                    str(into), order.version, train.seed, parallel.microbatches, tuple(parts)
                )
            )
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
