"""What to train, in the user's own words: the job, the file that defines it, and its data.

Contents of a micro-batch follow from (seed, step, micro-batch) alone, so that any worker can load
any of them. Knows nothing of stages, workers or schedules.
"""

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import IterableDataset, default_collate

from holdfast.errors import ConfigError, DataError
from holdfast.job_file import one_line_errors, read_source, run_source


class MapDataset(Protocol):
    """Any ``torch.utils.data.Dataset`` of map style; an item is ``(input, target)``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    layers: Sequence[nn.Module] | nn.Sequential
    """Applied one after the other. Holdfast cuts the list into stages."""

    loss: Callable[[Any, Any], Tensor]
    """(output of the last layer, target) -> mean loss of a micro-batch."""

    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    """Makes the optimizer of a stage from the stage's parameters."""

    data: MapDataset
    """``len(data)`` samples; ``data[i]`` is ``(input, target)``."""

    microbatch_size: int = 8
    """Samples in a micro-batch."""

    lr_schedule: Callable[[Optimizer], LRScheduler] | None = None
    """Stepped once after each optimizer step."""

    clip_norm: float | None = None
    """Largest norm of the gradients of all layers together; None: no clipping."""

    cut: Sequence[int] | None = None
    """First layer of each stage after the first, e.g. (2, 4); None: equal measured cost."""

    collate: Callable[[list[Any]], Any] | None = None
    """List of samples -> ``(input, target)``; None: torch's ``default_collate``."""

    def __post_init__(self) -> None:
        _check_layers(self.layers)
        _check_callables(self)
        _check_data(self.data)
        _check_numbers(self)
        if self.cut is not None:
            _check_cut(self.cut, len(self.layers))


def _check_layers(layers: object) -> None:
    if not isinstance(layers, Sequence | nn.Sequential) or isinstance(layers, str):
        raise ConfigError(
            f"Job.layers is a {_kind(layers)}: expected a list of torch modules or nn.Sequential; "
            "write the model as layers that are applied one after the other"
        )
    if not len(layers):
        raise ConfigError("Job.layers is empty: expected at least one torch module")
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ConfigError(
                f"Job.layers[{index}] is a {_kind(layer)}: expected a torch module; "
                "wrap a function in a small nn.Module"
            )
        for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
            if is_lazy(tensor):
                raise ConfigError(
                    f"Job.layers[{index}] is a {_kind(layer)} whose {name} has no shape yet: "
                    "expected finished parameters; give the input size, e.g. nn.Linear(8, 4) for "
                    "nn.LazyLinear(4), or run the layers once on a sample in job()"
                )


def _check_callables(job: Job) -> None:
    if isinstance(job.optimizer, Optimizer):
        raise ConfigError(
            f"Job.optimizer is a finished {_kind(job.optimizer)}: expected a function that makes "
            "one for each stage, e.g. lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    needed = {"loss": job.loss, "optimizer": job.optimizer}
    optional = {"lr_schedule": job.lr_schedule, "collate": job.collate}
    given = needed | {name: value for name, value in optional.items() if value is not None}
    for name, value in given.items():
        if not callable(value):
            raise ConfigError(f"Job.{name} is a {_kind(value)}: expected a function")


def _check_data(data: object) -> None:
    countable = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, IterableDataset) or not countable:
        raise ConfigError(
            f"Job.data is a {_kind(data)}: expected a data set with __len__ and __getitem__, "
            "because any worker must be able to load any sample; a stream cannot be used"
        )
    if not len(data):  # type: ignore[arg-type]  # has __len__, checked above
        raise ConfigError("Job.data has 0 samples: expected at least one")


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
    borders = list(cut) if isinstance(cut, Sequence) else None
    if (
        borders is None
        or any(type(border) is not int for border in borders)
        or borders != sorted(set(borders))
        or any(not 0 < border < num_layers for border in borders)
    ):
        raise ConfigError(
            f"Job.cut={cut!r}: expected rising layer numbers between 1 and {num_layers - 1} "
            f"(there are {num_layers} layers); leave it out to have stages of equal cost"
        )


def load_job(path: str | Path, seed: int, sha256: str = "") -> Job:
    """The job that the file's ``job()`` returns; its initial parameters follow from ``seed`` alone.

    Whatever goes wrong is one line of :class:`ConfigError`. ``sha256``: of the file as it has to
    be; empty: it may be any.
    """
    path = Path(path)
    source = read_source(path, sha256)
    _seed_all(seed)
    module = run_source(path, source)
    make = getattr(module, "job", None)
    if make is None:
        raise ConfigError(f"{path}: defines no function job(); add one that returns a holdfast Job")
    if not callable(make):
        raise ConfigError(
            f"{path}: job is a {_kind(make)}: expected a function job() that returns a holdfast Job"
        )
    _seed_all(seed)
    with one_line_errors(path):
        made = make()
    if not isinstance(made, Job):
        raise ConfigError(f"{path}: job() returned a {_kind(made)}: expected a holdfast Job")
    return made


def _seed_all(seed: int) -> None:
    """Initial parameters may be drawn from any of the three global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def _kind(value: object) -> str:
    return type(value).__name__


class Batches:
    """The job's samples as micro-batches: each sample once in an epoch of the data.

    Step ``t`` has ``num_microbatches`` micro-batches, numbered over the whole global batch. The
    order of the samples depends on the seed, not on how many make a micro-batch or a step.
    """

    def __init__(
        self,
        job: Job,
        seed: int,
        num_microbatches: int,
        *,
        retries: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        """What raises is tried again ``retries`` times, after pauses of which each is twice as
        long as the one before."""
        if num_microbatches < 1:
            raise ConfigError(f"micro-batches a step={num_microbatches}: expected at least 1")
        self._data = job.data
        with self._named("for its length"):
            self._num_samples = len(job.data)  # once: a folder may grow meanwhile
        self._collate = job.collate or default_collate
        self._size = job.microbatch_size
        self._seed = seed
        self._num_microbatches = num_microbatches
        self._retries, self._pause_s = retries, pause_s
        self._orders: dict[int, Tensor] = {}  # of the last two epochs: a step may span both

    def load(
        self, step: int, microbatch: int, pause: Callable[[float], None] = time.sleep
    ) -> tuple[tuple[Tensor, ...], Any]:
        """(inputs of the first layer, target) of one micro-batch of a step.

        ``pause`` waits before another try; what it raises ends them.
        """
        if not 0 <= microbatch < self._num_microbatches:
            raise ValueError(f"micro-batch {microbatch} of a step of {self._num_microbatches}")
        where = f"step {step + 1}, micro-batch {microbatch}"
        for tried in range(self._retries + 1):
            try:
                return _as_pair(self._batch(step, microbatch, where), where)
            except DataError as why:
                if tried == self._retries:
                    if tried:
                        why.add_note(f"tried {tried + 1} times")
                    raise
            pause(self._pause_s * 2**tried)
        raise AssertionError("the last try returns or raises")

    def _batch(self, step: int, microbatch: int, where: str) -> Any:
        # A data set may draw random numbers, e.g. to augment: the same ones on every worker and
        # in every try.
        with _seeded(_key("augment", self._seed, step, microbatch)):
            samples = []
            for index in self.indices(step, microbatch):
                with self._named(f"for sample {index} ({where})"):
                    samples.append(self._data[index])
            with _data_errors(f"cannot collate {where}: {{kind}}"):
                return self._collate(samples)

    def _named(self, what: str) -> AbstractContextManager[None]:
        return _data_errors(f"the data set {_kind(self._data)} raised {{kind}} {what}")

    def indices(self, step: int, microbatch: int) -> list[int]:
        """Which samples of the data set a micro-batch holds."""
        first = (step * self._num_microbatches + microbatch) * self._size
        return [self._index(position) for position in range(first, first + self._size)]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self._num_samples)
        return int(self._order(epoch)[place])

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed(_key("order", self._seed, epoch))
            if len(self._orders) == 2:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = torch.randperm(self._num_samples, generator=generator)
        return self._orders[epoch]


@contextmanager
def _data_errors(story: str) -> Iterator[None]:
    """Whatever is raised, also sys.exit() or a panic of a library in Rust; only Ctrl-C passes."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as why:
        raise DataError(f"{story.format(kind=_kind(why))}: {why}") from why


def _as_pair(batch: object, where: str) -> tuple[tuple[Tensor, ...], Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ConfigError(
            f"{where}: a batch is a {_kind(batch)}: expected (input, target); "
            "let the data set return such pairs, or set Job.collate"
        )
    given, target = batch
    inputs = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{where}: an input of the first layer is a {_kind(value)}: expected a tensor "
                "or a tuple of tensors; set Job.collate to make them"
            )
    return inputs, target


def _key(purpose: str, *numbers: int) -> int:
    """A seed for one purpose; hashed, as seed 1 epoch 2 must not be seed 2 epoch 1."""
    text = f"{purpose} {numbers}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Torch's, Python's and NumPy's global generators start from ``key``.

    Afterwards the first two are as before; to copy NumPy's out and back would take 0.2 ms.
    """
    torch_before, python_before = torch.default_generator.get_state(), random.getstate()
    torch.default_generator.manual_seed(key)
    random.seed(key)
    numpy.random.seed(key)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_before)
        random.setstate(python_before)


def num_tokens(target: Any) -> int:
    """What throughput counts: elements of integer targets of two dims or more, else samples."""
    first = target
    while isinstance(first, Mapping | list | tuple):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    if not isinstance(first, Tensor):
        raise ConfigError(f"a target is a {_kind(first)}: expected a tensor; set Job.collate")
    whole = not first.dtype.is_floating_point and not first.dtype.is_complex
    if whole and first.dim() > 1:
        return first.numel()
    return first.shape[0] if first.dim() else 1
