"""What to train, in the user's own words: the job, checked, and the file that defines it.

Knows nothing of stages, workers or schedules.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import IterableDataset
from typing_extensions import TypeIs

from holdfast.adaptors.as_layers import as_layers
from holdfast.adaptors.examples import first_inputs, given_inputs
from holdfast.adaptors.model_checks import check_model, check_shapes, check_trained
from holdfast.adaptors.unfreezing import Unfreeze, frozen_steps
from holdfast.config import METRIC
from holdfast.errors import ConfigError


class MapDataset(Protocol):
    """Any ``torch.utils.data.Dataset`` of map style; an item is ``(input, target)``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class StreamDataset(Protocol):
    """Samples ``(input, target)`` one after the other, e.g. torchdata's ``StatefulDataLoader``.

    What ``state_dict()`` gives after some samples, given to ``load_state_dict()`` of another one,
    lets that go on with the sample after them. ``set_epoch(epoch)`` is called if there is one.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def is_stream(data: object) -> TypeIs[StreamDataset]:
    """What can be asked for any sample is none, whatever else it can do."""
    return isinstance(data, StreamDataset) and not hasattr(data, "__getitem__")


Sampler = Callable[[int], Iterable[int]] | Iterable[int]


@dataclass(frozen=True, kw_only=True)
class Job:
    layers: Sequence[nn.Module] | nn.Sequential = ()
    """Applied one after the other. Holdfast cuts the list into stages."""

    model: nn.Module | None = None
    """Instead of ``layers``: any module. Holdfast makes the layers from it."""

    loss: Callable[[Any, Any], Tensor]
    """(output of the last layer, target) -> mean loss of a micro-batch."""

    optimizer: Callable[[Any], Optimizer]
    """Makes the optimizer of a stage from the stage's parameters; from (name, parameter) pairs, if
    its own first parameter is called ``named_parameters``."""

    data: MapDataset | StreamDataset
    """``data[i]`` is ``(input, target)``, for ``len(data)`` samples; or a stream of them."""

    sampler: Sampler | None = None
    """epoch -> samples in their order, or a torch ``Sampler``; None: all, shuffled each epoch."""

    microbatch_size: int = 8
    """Samples in a micro-batch."""

    weight: Callable[[Any], Tensor | float] | None = None
    """target -> what its micro-batch counts for, such as its real tokens; None: all count 1."""

    lr_schedule: Callable[[Optimizer], LRScheduler] | None = None
    """Stepped once after each optimizer step."""

    clip_norm: float | None = None
    """Largest norm of the gradients of all layers together; None: no clipping."""

    cut: Sequence[int] | None = None
    """First layer of each stage after the first, e.g. (2, 4); None: equal measured cost."""

    collate: Callable[[list[Any]], Any] | None = None
    """List of samples -> ``(input, target)``; None: torch's ``default_collate``."""

    validation: MapDataset | None = None
    """What the model is validated with, each sample once and in order; None: nothing is."""

    metrics: Mapping[str, Callable[[Any, Any], Tensor | float]] = field(default_factory=dict)
    """Name -> (output of the last layer, target) -> one number, the mean over a micro-batch."""

    weight_names: Callable[[str], str] | Mapping[str, str] | None = None
    """From a name of the model ("3.attention.weight") to its name in the weights that the run
    starts from; None: they are the same. What a mapping lacks is the same, too."""

    unfreeze: Unfreeze = field(default_factory=dict)
    """After so many steps -> patterns of the names of parameters that are trained from there on,
    and were frozen before, e.g. ``{100: ["embedding.*"]}``."""

    split_points: Sequence[str] = ()
    """Submodules before which a traced model is cut; none: before each block of its lists."""

    example_inputs: Tensor | tuple[Tensor, ...] | None = None
    """What a model is traced with; None: the first micro-batch of the data."""

    own_names: Mapping[str, str] = field(init=False, repr=False, default_factory=dict)
    """Of a model's tensors: "3.block.norm.weight" -> what the model itself calls it."""

    frozen_steps: Mapping[str, int] = field(init=False, repr=False, default_factory=dict)
    """Of parameters that are frozen at first: "3.block.norm.weight" -> for how many steps."""

    def __post_init__(self) -> None:
        _check_callables(self)
        _check_data(self.data)
        _check_sampler(self.sampler, self.data)
        _check_validation(self)
        _check_numbers(self)
        if self.model is not None:
            self._make_layers(self.model)
        else:
            _check_untraced(self)
        _check_layers(self.layers)
        if self.cut is not None:
            _check_cut(self.cut, len(self.layers))
        frozen = frozen_steps(self.layers, self.own_names, self.unfreeze)
        for number, layer in enumerate(self.layers):
            for path, parameter in layer.named_parameters():
                name = f"{number}.{path}"
                if name in frozen:  # whatever the job has said: it is trained later
                    parameter.requires_grad_()
                check_trained(own_name(self, name), parameter)
        object.__setattr__(self, "frozen_steps", frozen)

    def _make_layers(self, model: nn.Module) -> None:
        check_model(model, self.layers, self.split_points)
        made = as_layers(model, tuple(self.split_points), self._examples)
        object.__setattr__(self, "layers", made.layers)  # frozen from here on
        object.__setattr__(self, "own_names", made.names)

    def _examples(self) -> tuple[Tensor, ...]:
        if self.example_inputs is not None:
            return given_inputs(self.example_inputs, "a part of Job.example_inputs")
        if is_stream(self.data):  # to ask it for samples would move it on
            raise ConfigError(
                f"Job.data is a stream ({_kind(self.data)}): expected Job.example_inputs, too, to "
                "trace Job.model with"
            )
        return first_inputs(self.data, self.microbatch_size, self.collate)


def own_name(job: Job, name: str) -> str:
    """What the job's model calls a parameter or buffer; of a list of layers, the same."""
    return job.own_names.get(name, name)


def _check_untraced(job: Job) -> None:
    given = {
        "split_points": bool(job.split_points),
        "example_inputs": job.example_inputs is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"Job.{name} is given without Job.model, which alone has a use for it"
            )


def _check_layers(layers: object) -> None:
    if not isinstance(layers, Sequence | nn.Sequential) or isinstance(layers, str):
        raise ConfigError(
            f"Job.layers is a {_kind(layers)}: expected a list of torch modules or nn.Sequential; "
            "write the model as layers that are applied one after the other"
        )
    if not len(layers):
        raise ConfigError(
            "Job.layers is empty: expected at least one torch module, or any module as Job.model"
        )
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ConfigError(
                f"Job.layers[{index}] is a {_kind(layer)}: expected a torch module; "
                "wrap a function in a small nn.Module"
            )
        check_shapes(f"Job.layers[{index}]", layer)


def _check_callables(job: Job) -> None:
    if isinstance(job.optimizer, Optimizer):
        raise ConfigError(
            f"Job.optimizer is a finished {_kind(job.optimizer)}: expected a function that makes "
            "one for each stage, e.g. lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    needed = {"loss": job.loss, "optimizer": job.optimizer}
    optional = {"lr_schedule": job.lr_schedule, "collate": job.collate, "weight": job.weight}
    given = needed | {name: value for name, value in optional.items() if value is not None}
    for name, value in given.items():
        if not callable(value):
            raise ConfigError(f"Job.{name} is a {_kind(value)}: expected a function")
    names = job.weight_names
    if names is not None and not callable(names) and not isinstance(names, Mapping):
        raise ConfigError(
            f"Job.weight_names is a {_kind(names)}: expected a function or a mapping, from names "
            "of the model to names of the file"
        )


def _check_data(data: object) -> None:
    if is_stream(data):
        return
    if not _is_map_style(data):
        raise ConfigError(
            f"Job.data is a {_kind(data)}: expected a data set with __len__ and __getitem__, or a "
            "stream with __iter__, state_dict and load_state_dict: a worker that takes over must "
            "be able to go on where another one was"
        )
    if not len(data):  # type: ignore[arg-type]  # has __len__, checked above
        raise ConfigError("Job.data has 0 samples: expected at least one")


def _is_map_style(data: object) -> bool:
    countable = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return countable and not isinstance(data, IterableDataset)


def _check_validation(job: Job) -> None:
    if job.validation is not None and not _is_map_style(job.validation):
        raise ConfigError(
            f"Job.validation is a {_kind(job.validation)}: expected a data set with __len__ and "
            "__getitem__, because any worker must be able to load any sample"
        )
    if job.validation is not None and not len(job.validation):
        raise ConfigError("Job.validation has 0 samples: expected at least one")
    if not isinstance(job.metrics, Mapping):
        raise ConfigError(
            f"Job.metrics is a {_kind(job.metrics)}: expected names and functions, e.g. "
            '{"accuracy": lambda output, target: ...}'
        )
    if job.metrics and job.validation is None:
        raise ConfigError(
            f"Job.metrics has {len(job.metrics)} and Job.validation is not set: expected a data "
            "set that they are taken of"
        )
    for name, metric in job.metrics.items():
        if not isinstance(name, str) or METRIC.fullmatch(name) is None or name == "loss":
            raise ConfigError(
                f"Job.metrics has {name!r}: expected a name of letters, digits and _.@/-, and not "
                "loss, which is there by itself"
            )
        if not callable(metric):
            raise ConfigError(f"Job.metrics[{name!r}] is a {_kind(metric)}: expected a function")


def _check_sampler(sampler: object, data: object) -> None:
    if sampler is not None and is_stream(data):
        raise ConfigError(
            f"Job.sampler is a {_kind(sampler)}, and Job.data a stream, which has its own order: "
            "leave the sampler out"
        )
    if not (sampler is None or callable(sampler) or isinstance(sampler, Iterable)):
        raise ConfigError(
            f"Job.sampler is a {_kind(sampler)}: expected a function that gives an epoch's samples "
            "in their order, or a torch Sampler"
        )


def _check_numbers(job: Job) -> None:
    size = job.microbatch_size
    if type(size) is not int or size < 1:
        raise ConfigError(f"Job.microbatch_size={size!r}: expected a whole number of at least 1")
    norm = job.clip_norm
    if norm is None:
        return
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not 0 < norm < math.inf:
        raise ConfigError(
            f"Job.clip_norm={norm!r}: expected a positive number; leave it out for no clipping"
        )


def _check_cut(cut: Sequence[int], num_layers: int) -> None:
    boundaries = list(cut) if isinstance(cut, Sequence) else None
    if (
        boundaries is None
        or any(type(boundary) is not int for boundary in boundaries)
        or boundaries != sorted(set(boundaries))
        or any(not 0 < boundary < num_layers for boundary in boundaries)
    ):
        raise ConfigError(
            f"Job.cut={cut!r}: expected rising layer numbers between 1 and {num_layers - 1} "
            f"(there are {num_layers} layers); leave it out to have stages of equal cost"
        )


def _kind(value: object) -> str:
    return type(value).__name__
