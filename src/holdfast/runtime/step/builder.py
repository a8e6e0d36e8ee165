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
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.stage.named_tensors import (
    Layers,
    buffer_shapes,
    live_tensors,
    names_of_each,
)
from holdfast.runtime.stage.stage import ParameterSlot, Stage
from holdfast.runtime.stage.ties import untie
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
    ends: tuple[int, int]  # the first and the last layer of the model

    @property
    def is_first(self) -> bool:
        return self.number == 0


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
        all_layers, ties = untie(list(self.job.layers))
        layers = {layer: all_layers[layer] for number in numbers for layer in ranges[number]}
        stage = self._stage(self._started(layers, first_step))
        twins = [tie.members for tie in ties]
        gradients = self._gradients(stage, max([1, *map(len, twins)]))
        optimizer = self._optimizer(stage)
        commit = StageCommit(
            optimizer,
            stage,
            layers,
            _counted(stage.slots, twins),
            reduced=first_step,
            keeps_old=keeps_old,
            consistency=self.config.recovery.consistency,
            staggered=self.config.optimizer.mode == "staggered",
            before_update=before_update,
            may_commit=may_commit,
            reach=reach,
            due=due,
            activity=self.code.activity,
        )
        shapes, is_last = buffer_shapes(layers), numbers[-1] == len(ranges) - 1
        sums = StepSums(self.config.parallel.microbatches, shapes, is_last=is_last)
        slots = _names(ranges, all_layers, numbers)
        form = StageForm(gradients.layout, shapes)
        return StageParts(
            number=numbers[0],
            layers=layers,
            stage=stage,
            again=self._stage(layers),
            optimizer=optimizer,
            state=StageState(layers, stage.slots, optimizer, gradients),
            commit=commit,
            parts=Parts(slots, twins, gradients, sums, form),
            is_last=is_last,
            ends=(0, len(all_layers) - 1),
        )

    def _started(self, layers: Layers, first_step: int) -> Layers:
        """With the weights that the run starts from; in a later step others have a later state."""
        if self.weights is not None and not first_step:
            names = names_of_each(dict(enumerate(self.job.layers)))
            self.weights.fill(live_tensors(layers), names)
        return layers

    def _stage(self, layers: Layers) -> Stage:
        config, is_last = self.config, max(layers) == len(self.job.layers) - 1
        return Stage(
            list(layers.values()),
            first_layer=min(layers),
            seed=config.train.seed,
            unpack=not isinstance(self.job.layers, nn.Sequential),
            loss=self.job.loss if is_last else None,
            loss_scale=1.0 / config.parallel.microbatches,
            checkpoint_activations=config.stage.checkpoint_activations,
            ran=self.code.ran,
        )

    def _optimizer(self, stage: Stage) -> StageOptimizer:
        return StageOptimizer(
            [slot.parameter for slot in stage.slots],
            [slot.key for slot in stage.slots],
            self.job.optimizer,
            self.job.lr_schedule,
        )

    def _gradients(self, stage: Stage, num_twins: int) -> ExactGradients | FastGradients:
        parameters = [slot.parameter for slot in stage.slots]
        layout = FlatLayout.of(parameters, [slot.key for slot in stage.slots])
        gradients: ExactGradients | FastGradients
        if self.config.gradients.mode == "fast":
            gradients = FastGradients(layout)
            if gradients.native:
                gradients.attach(parameters)
        else:
            gradients = ExactGradients(layout, self.config.parallel.microbatches * num_twins)
        stage.sink = gradients
        return gradients


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
