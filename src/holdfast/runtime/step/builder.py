"""A stage as it stands on one worker: layers, sums, optimizer and their state, from the job.

Several neighbouring stages can be built as one: the cut does not show in any bit. Knows no peers
and no order of operations.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from torch import nn

from holdfast.config import RunConfig
from holdfast.device.processor import PROCESSOR, Device
from holdfast.job import Job
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.job.naming import first_keys, make_optimizer
from holdfast.runtime.reduce.buckets import ParameterName
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.stage.compiled import can_compile
from holdfast.runtime.stage.named_tensors import (
    Layers,
    buffer_shapes,
    live_tensors,
    names_of_each,
)
from holdfast.runtime.stage.precision import Precision
from holdfast.runtime.stage.slots import ParameterSlot
from holdfast.runtime.stage.sparing import hold_only
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.stage.ties import Tie, untie
from holdfast.runtime.state.results import StageForm
from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.step.epoch import Parts
from holdfast.runtime.update.commit import StageCommit
from holdfast.runtime.update.finishing import Finishing
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.schedule.cut import stage_ranges
from holdfast.weights.starting import StartingWeights

Reach = Callable[[int, str], None]


@dataclass(frozen=True)
class StageParts:
    number: int  # of the stage; of several built as one, the first
    layers: Layers
    stage: Stage
    again: Stage  # of the same layers: for operations that others need once more
    optimizer: StageOptimizer
    state: StageState
    commit: StageCommit
    parts: Parts
    is_last: bool

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def averaged(self) -> AbstractContextManager[None]:
        """Its layers with the average of their weights, for a while."""
        return self.optimizer.average.in_place_of([slot.parameter for slot in self.stage.slots])

    @property
    def fed(self) -> set[int]:
        """Layers here that data come to: the first of the model, and the last, for targets."""
        first = {min(self.layers)} if self.is_first else set[int]()
        return first | ({max(self.layers)} if self.is_last else set())


@dataclass(frozen=True)
class Builder:
    """What does not depend on which stages are built."""

    job: Job
    config: RunConfig
    cut: Sequence[int]
    code: JobCode
    weights: StartingWeights | None = None  # instead of parameters as the job makes them
    device: Device = PROCESSOR

    def build(
        self,
        numbers: Sequence[int],
        *,
        first_step: int,
        keeps_old: bool,
        before_update: Callable[[], None] = lambda: None,
        may_commit: Callable[[], None] = lambda: None,
        reach: Reach = lambda step, point: None,
        due: Callable[[int, str], bool] = lambda step, point: False,
    ) -> StageParts:
        """``numbers``: neighbouring stages, in order."""
        ranges = stage_ranges(self.cut, len(self.job.layers))
        all_layers, ties = _held(list(self.job.layers), [ranges[number] for number in numbers])
        layers = {layer: all_layers[layer] for number in numbers for layer in ranges[number]}
        scale = self._loss_scale(first_step)
        stage = self._stage(self._started(layers, first_step), scale)
        twins = [tie.members for tie in ties]
        gradients = self._gradients(stage, max([1, *map(len, twins)]), scale)
        optimizer = self._optimizer(stage, twins)
        commit = StageCommit(
            optimizer,
            stage,
            layers,
            _counted(stage.slots, twins),
            reduced=first_step,
            keeps_old=keeps_old,
            consistency=self.config.recovery.consistency,
            staggered=self._staggered,
            loss_scale=scale,
            before_update=before_update,
            may_commit=may_commit,
            reach=reach,
            due=due,
            activity=self.code.activity,
        )
        shapes, is_last = buffer_shapes(layers), numbers[-1] == len(ranges) - 1
        sums = StepSums(self.config.parallel.microbatches, shapes, is_last=is_last)
        slots = _names(ranges, all_layers, numbers)
        return StageParts(
            number=numbers[0],
            layers=layers,
            stage=stage,
            again=self._stage(layers, scale),
            optimizer=optimizer,
            state=StageState(layers, stage.slots, optimizer, gradients, scale, self.device),
            commit=commit,
            parts=Parts(slots, twins, gradients, sums, StageForm(gradients.layout, shapes)),
            is_last=is_last,
        )

    @property
    def _staggered(self) -> bool:
        """With weights, what a gradient is to be divided by is known with the verdict only."""
        return self.config.optimizer.mode == "staggered" and self.job.weight is None

    def _started(self, layers: Layers, first_step: int) -> Layers:
        """On the device, with the weights that the run starts from; in a later step others have a
        later state."""
        if self.weights is not None and not first_step:
            names = names_of_each(dict(enumerate(self.job.layers)))
            self.weights.fill(live_tensors(layers), names)
        if isinstance(self.job.loss, nn.Module):
            self.device.place_layer(self.job.loss)
        return {number: self.device.place_layer(layer) for number, layer in layers.items()}

    def _loss_scale(self, first_step: int) -> LossScale:
        train = self.config.train
        if train.precision != "fp16":
            return LossScale()
        first = ScaleState(train.loss_scale.bit_length() - 1)
        return LossScale(first, growth_steps=train.loss_scale_steps, first_step=first_step)

    def _stage(self, layers: Layers, scale: LossScale) -> Stage:
        config, is_last = self.config, max(layers) == len(self.job.layers) - 1
        microbatches = config.parallel.microbatches
        return Stage(
            list(layers.values()),
            first_layer=min(layers),
            seed=config.train.seed,
            unpack=not isinstance(self.job.layers, nn.Sequential),
            loss=self.job.loss if is_last else None,
            weight=self.job.weight,
            loss_scale=lambda step: scale.at(step) / microbatches,
            checkpoint_activations=config.stage.checkpoint_activations,
            compiled=config.stage.compile and can_compile(),
            autocast=Precision.of(config.train.precision, self.device.kind).autocast,
            device=self.device,
            ran=self.code.ran,
            frozen_steps=self.job.frozen_steps,
        )

    def _optimizer(self, stage: Stage, twins: Sequence[Sequence[ParameterName]]) -> StageOptimizer:
        keys, train = [slot.key for slot in stage.slots], self.config.train
        one_for_twins = first_keys(keys, twins)
        return StageOptimizer(
            [slot.parameter for slot in stage.slots],
            keys,
            partial(make_optimizer, self.job, one_for_twins),
            self.job.lr_schedule,
            masters=self.config.optimizer.masters,
            finishing=Finishing(one_for_twins, train),
            ema=train.ema,
            place=self.device.place,
        )

    def _gradients(
        self, stage: Stage, num_twins: int, scale: LossScale
    ) -> ExactGradients | FastGradients:
        parameters = [slot.parameter for slot in stage.slots]
        layout = FlatLayout.of(parameters, [slot.key for slot in stage.slots])
        gradients: ExactGradients | FastGradients
        if self.config.gradients.mode == "fast":
            gradients = FastGradients(layout, scale, self.device)
            if gradients.native:
                gradients.attach(parameters)
        else:
            num = self.config.parallel.microbatches * num_twins
            gradients = ExactGradients(layout, num, scale, self.device)
        stage.sink = gradients
        return gradients


def _held(
    layers: Sequence[nn.Module], stages: Sequence[range]
) -> tuple[list[nn.Module], tuple[Tie, ...]]:
    mine = [layer for stage in stages for layer in stage]
    hold_only(layers, mine)
    return untie(layers, mine)


def _names(
    ranges: Sequence[range], layers: Sequence[nn.Module], together: Collection[int]
) -> dict[int, list[ParameterName]]:
    """Parameters of every stage; those of the stages built as one are all under the first."""
    names: dict[int, list[ParameterName]] = {}
    for number, stage_layers in enumerate(ranges):
        stage = min(together) if number in together else number
        of_stage = names.setdefault(stage, [])
        of_stage += [name for layer in stage_layers for name in _trainable(layer, layers[layer])]
    return names


def _trainable(number: int, layer: nn.Module) -> list[ParameterName]:
    return [(number, name) for name, p in layer.named_parameters() if p.requires_grad]


def _counted(
    slots: Sequence[ParameterSlot], ties: Sequence[Sequence[ParameterName]]
) -> tuple[bool, ...]:
    """A tied parameter counts once for the norm: as its first twin."""
    later = {name for tie in ties for name in tie[1:]}
    return tuple((slot.layer, slot.name) not in later for slot in slots)
