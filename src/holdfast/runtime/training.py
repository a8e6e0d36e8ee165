"""A worker's stage in training: everything built from an assignment, wired, run and reported."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.job import Batches, Job
from holdfast.protocol import messages
from holdfast.recovery.checkpoint import read_layers
from holdfast.recovery.manifest import load_manifest
from holdfast.runtime.buckets import plan_buckets
from holdfast.runtime.buffer_sums import BufferSums
from holdfast.runtime.commit import Committed, StageCommit
from holdfast.runtime.emulation import EmulatedDevice
from holdfast.runtime.executor import Executor, Lane, StepRecord
from holdfast.runtime.gradients import ExactGradients, FastGradients, Layout
from holdfast.runtime.optimizer import StageOptimizer
from holdfast.runtime.reduction import Reduced, reduce_gradients
from holdfast.runtime.saving import BackgroundWriter
from holdfast.runtime.stage import Slot, Stage
from holdfast.runtime.state import Layers, layer_digest, load_state_tensors, state_tensors
from holdfast.runtime.ties import untie
from holdfast.runtime.verdict import VerdictExchange
from holdfast.schedule.cut import stage_ranges
from holdfast.schedule.schedule import loads
from holdfast.transport.base import Transport

_OPTIMIZER = "optimizer"
_EXPONENT = "exponent"  # of a parameter's fixed-point sums: part of the state


class StageTraining:
    def __init__(
        self,
        *,
        me: WorkerId,
        config: RunConfig,
        job: Job,
        batches: Batches,
        transport: Transport,
        assign: messages.Assign,
        tell: Callable[[messages.Message], None],
        compute: AbstractContextManager[Any],
    ) -> None:
        self._me, self._config, self._transport, self._tell = me, config, transport, tell
        self._epoch = assign.epoch
        self._schedule = loads(assign.schedule)
        ranges = stage_ranges(assign.cut, len(job.layers))
        layers, ties = untie(list(job.layers))
        self._layers = {number: layers[number] for number in ranges[me.stage]}
        self._stage = _build_stage(job, config, self._layers, compute)
        slots = {
            stage: [name for number in numbers for name in _trainable(number, layers[number])]
            for stage, numbers in enumerate(ranges)
        }
        holders = {stage: self._schedule.holders(stage) for stage in range(len(ranges))}
        twins = [tie.members for tie in ties]
        self._buckets = plan_buckets(me.stage, slots=slots, ties=twins, holders=holders)
        self._gradients = self._make_gradients(max([1, *map(len, twins)]))
        self._exponents = tuple(self._gradients.exponents)  # of the next step's sums
        self._stage.sink = self._gradients
        if isinstance(self._gradients, FastGradients) and self._gradients.native:
            self._gradients.attach(self._parameters)
        self._buffer_sums = BufferSums(config.parallel.microbatches)
        self._optimizer = StageOptimizer(
            self._parameters, [s.key for s in self._stage.slots], job.optimizer, job.lr_schedule
        )
        self._commit = StageCommit(
            self._optimizer,
            self._stage,
            self._layers,
            VerdictExchange(me, self._schedule, transport, job.clip_norm),
            transport,
            _counted(self._stage.slots, twins),
            config.workers.wait_limit_s,
        )
        if assign.checkpoint:
            self._load(Path(assign.checkpoint))
        self._executor = Executor(self._lane(batches, compute))
        self._writer: BackgroundWriter | None = None

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [slot.parameter for slot in self._stage.slots]

    def _make_gradients(self, num_twins: int) -> ExactGradients | FastGradients:
        slots = self._stage.slots
        layout = Layout.of(self._parameters, [slot.key for slot in slots])
        if self._config.gradients.mode == "fast":
            return FastGradients(layout)
        return ExactGradients(layout, self._config.parallel.microbatches * num_twins)

    def _lane(self, batches: Batches, compute: AbstractContextManager[Any]) -> Lane:
        config = self._config
        return Lane(
            me=self._me,
            schedule=self._schedule,
            stage=self._stage,
            batches=batches,
            transport=self._transport,
            commit=self._commit,
            reduce=self._reduce,
            begin_step=self._begin_step,
            on_forward=self._buffer_sums.add,
            on_commit=self._on_commit,
            compute=compute,
            device=EmulatedDevice(config.device.durations_s()),
            staggered=config.optimizer.mode == "staggered",
            timeout_s=config.workers.wait_limit_s,
        )

    def run(self, first_step: int, end_step: int, run_dir: Path) -> None:
        if self._me == self._schedule.holders(self._me.stage)[0]:
            self._writer = BackgroundWriter(
                run_dir, self._me.stage, self._config.workers.wait_limit_s
            )
        self._executor.run(first_step, end_step)
        if self._writer is not None:
            self._writer.wait()

    def finished(self, peak_memory_bytes: int) -> messages.Finished:
        return messages.Finished(
            worker=str(self._me),
            digests={str(number): layer_digest(layer) for number, layer in self._layers.items()},
            peak_memory_bytes=peak_memory_bytes,
        )

    # --- called by the executor ---

    def _begin_step(self) -> None:
        self._gradients.clear()
        if isinstance(self._gradients, ExactGradients):
            self._gradients.exponents = self._exponents
        self._buffer_sums.clear()

    def _reduce(self, step: int, attempt: int) -> None:
        timeout_s = self._config.workers.wait_limit_s

        def run_reduction() -> tuple[Reduced, dict[str, Tensor]]:
            members = self._schedule.holders(self._me.stage)
            reduced = reduce_gradients(
                self._gradients,
                self._buckets,
                me=self._me,
                transport=self._transport,
                step=step,
                attempt=attempt,
                epoch=self._epoch,
                timeout_s=timeout_s,
            )
            means = self._buffer_sums.mean(
                members, self._me, self._transport, (step, attempt), timeout_s
            )
            return reduced, means

        reduced = self._commit.reduce(step, attempt, run_reduction)
        if isinstance(self._gradients, ExactGradients):
            self._exponents = self._gradients.next_exponents(reduced.maxima)

    def _on_commit(self, committed: Committed, record: StepRecord) -> None:
        verdict = committed.verdict
        if verdict.skip and self._config.gradients.nonfinite == "stop":
            raise HoldfastError(
                f"the gradient of step {committed.step} holds NaN or Inf and "
                "gradients.nonfinite=stop; lower the learning rate, or set it to skip"
            )
        report = messages.StepReport(
            worker=str(self._me),
            step=committed.step,
            losses=[[m, loss] for m, loss in sorted(record.losses.items())],
            num_tokens=record.num_tokens,
            norm=verdict.norm,
            clipped=verdict.scale is not None,
            skipped=verdict.skip,
            taken_back=committed.taken_back,
            operations=[list(o) for o in record.operations]
            if self._config.observe.operations
            else [],
        )
        self._tell(report)
        self._save_if_due(committed.step + 1)

    # --- checkpoints ---

    def _save_if_due(self, version: int) -> None:
        checkpoint, last = self._config.checkpoint, version == self._config.train.steps
        due = bool(checkpoint.every_steps) and version % checkpoint.every_steps == 0
        if self._writer is None:
            return
        self._writer.check()
        if not (due or (last and checkpoint.at_end)):
            return

        def done(directory: str, digests: dict[str, str], took_s: float) -> None:
            part = messages.CheckpointPart(
                worker=str(self._me),
                step=version,
                directory=directory,
                layers=list(self._layers),
                digests=digests,
                state={_OPTIMIZER: self._optimizer.kind},
                took_s=took_s,
            )
            self._tell(part)

        self._writer.write(version, self._state_tensors(), done)

    def _state_tensors(self) -> dict[str, Tensor]:
        """Copies of all that a resumed stage needs, by layer."""
        tensors = state_tensors(self._layers) | self._optimizer.state_tensors()
        if isinstance(self._gradients, ExactGradients):
            for slot, exponent in zip(self._stage.slots, self._exponents, strict=True):
                tensors[f"{slot.key}/{_EXPONENT}"] = torch.tensor(exponent)
        return tensors

    def _load(self, directory: Path) -> None:
        checkpoint = load_manifest(directory)
        self._optimizer.check_wrote({part.state.get(_OPTIMIZER) for part in checkpoint.parts})
        tensors = read_layers(checkpoint, self._layers)
        exponents = {k: tensors.pop(k) for k in list(tensors) if k.endswith(f"/{_EXPONENT}")}
        state = {k: tensors.pop(k) for k in list(tensors) if "/" in k}
        load_state_tensors(self._layers, tensors)
        self._optimizer.load_state_tensors(state)
        if isinstance(self._gradients, ExactGradients) and exponents:
            keys = [f"{slot.key}/{_EXPONENT}" for slot in self._stage.slots]
            if missing := [key for key in keys if key not in exponents]:
                raise CheckpointError(
                    f"checkpoint {directory} lacks {missing[0]}; resume with the job that wrote it"
                )
            self._exponents = tuple(int(exponents[key]) for key in keys)


def _build_stage(
    job: Job, config: RunConfig, layers: Layers, compute: AbstractContextManager[Any]
) -> Stage:
    first, last = min(layers), max(layers)
    return Stage(
        list(layers.values()),
        first_layer=first,
        seed=config.train.seed,
        unpack=not isinstance(job.layers, nn.Sequential),
        loss=job.loss if last == len(job.layers) - 1 else None,
        loss_scale=1.0 / config.parallel.microbatches,
        checkpoint_activations=config.stage.checkpoint_activations,
        lock=compute,
    )


def _trainable(number: int, layer: nn.Module) -> list[tuple[int, str]]:
    return [(number, name) for name, p in layer.named_parameters() if p.requires_grad]


def _counted(slots: Sequence[Slot], ties: Sequence[Sequence[tuple[int, str]]]) -> tuple[bool, ...]:
    """A tied parameter counts once for the norm: as its first twin."""
    later = {name for tie in ties for name in tie[1:]}
    return tuple((slot.layer, slot.name) not in later for slot in slots)
