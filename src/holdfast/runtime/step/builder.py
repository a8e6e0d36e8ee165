"""A stage as it stands on one worker: layers, sums, optimizer and their state, from the job.

Several neighbouring stages can be built as one: the cut does not show in any bit. Knows no peers
and no order of operations.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import nn

from holdfast.config import RunConfig
from holdfast.job import Job
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.reduce.buckets import ParameterName
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients, FlatLayout
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.stage.named_tensors import (
    Layers,
    buffer_shapes,
    live_tensors,
    names_of_each,
)
from holdfast.runtime.stage.precision import Precision
from holdfast.runtime.stage.sparing import hold_only
from holdfast.runtime.stage.stage import ParameterSlot, Stage
from holdfast.runtime.stage.ties import Tie, untie
from holdfast.runtime.state.results import StageForm
from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.step.epoch import Parts
from holdfast.runtime.update.commit import StageCommit
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
        optimizer = self._optimizer(stage)
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
            state=StageState(layers, stage.slots, optimizer, gradients, scale),
            commit=commit,
            parts=Parts(slots, twins, gradients, sums, StageForm(gradients.layout, shapes)),
            is_last=is_last,
        )

    @property
    def _staggered(self) -> bool:
        """With weights, what a gradient is to be divided by is known with the verdict only."""
        return self.config.optimizer.mode == "staggered" and self.job.weight is None

    def _started(self, layers: Layers, first_step: int) -> Layers:
        """With the weights that the run starts from; in a later step others have a later state."""
        if self.weights is not None and not first_step:
            names = names_of_each(dict(enumerate(self.job.layers)))
            self.weights.fill(live_tensors(layers), names)
        return layers

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
            autocast=Precision.of(config.train.precision).autocast,
            ran=self.code.ran,
        )

    def _optimizer(self, stage: Stage) -> StageOptimizer:
        return StageOptimizer(
            [slot.parameter for slot in stage.slots],
            [slot.key for slot in stage.slots],
            self.job.optimizer,
            self.job.lr_schedule,
            masters=self.config.optimizer.masters,
        )

    def _gradients(
        self, stage: Stage, num_twins: int, scale: LossScale
    ) -> ExactGradients | FastGradients:
        parameters = [slot.parameter for slot in stage.slots]
        layout = FlatLayout.of(parameters, [slot.key for slot in stage.slots])
        gradients: ExactGradients | FastGradients
        if self.config.gradients.mode == "fast":
            gradients = FastGradients(layout, scale)
            if gradients.native:
                gradients.attach(parameters)
        else:
            num = self.config.parallel.microbatches * num_twins
            gradients = ExactGradients(layout, num, scale)
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
