"""A recorded trace of operations, as columns: who did what for which micro-batch, and when.

Checks what comes in. Files, and what the times mean, are not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.arrays import Flags, Floats, Ints
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError

WANTED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mb_id")
OPTIONAL = ("rank", "mc", "gmc")
_TIMES = ("start_ts", "duration")
_PLACES = ("dp_rank", "stage")
_MAY_BE_UNKNOWN = ("mb_id", "mc", "gmc")  # empty, or below 0: the operation is of none
_NUMBERS = {int, float, Decimal, type(None)}  # not bool: True is no number of a step
MOST = 10_000_000  # pipelines or stages; no job comes near
_EXACT = 10**15  # whole numbers up to here are exact as floats
_LONGEST_S = 1e20  # nanoseconds since 1970 taken for seconds are less
_LONGEST_NAME = 200
_MANY_WORKERS = 1000  # each of them is replayed alone
_LEAST_OPS = 4  # of each worker on average, if they are many


@dataclass(frozen=True, slots=True)
class TraceLayout:
    pipelines: int
    stages: int
    chunks: int = 1  # of the model, at each stage


@dataclass(frozen=True)
class Trace:
    """One element a row: an operation of one worker."""

    layout: TraceLayout
    steps: tuple[int, ...]  # as they are numbered in the trace
    kinds: tuple[str, ...]  # names of operations
    step: Ints  # index into ``steps``
    kind: Ints  # index into ``kinds``
    pipeline: Ints
    stage: Ints
    rank: Ints
    peer: Ints  # 0, 1, ... among the ranks of one pipeline and stage
    chunk: Ints  # below 0: of none
    sequence: Ints  # number among operations of its kind
    microbatch: Ints  # below 0: of none
    start_s: Floats
    took_s: Floats

    @property
    def size(self) -> int:
        return len(self.step)

    @property
    def end_s(self) -> Floats:
        return self.start_s + self.took_s

    @property
    def worker(self) -> Ints:
        """Of each row: the number of its pipeline and stage."""
        return self.pipeline * self.layout.stages + self.stage

    def worker_id(self, worker: int) -> WorkerId:
        return WorkerId(*divmod(worker, self.layout.stages))

    def recorded_s(self) -> Floats:
        """How long each step took: from the first start to the last end."""
        first, last = np.full(len(self.steps), np.inf), np.full(len(self.steps), -np.inf)
        np.minimum.at(first, self.step, self.start_s)
        np.maximum.at(last, self.step, self.end_s)
        return np.asarray(last - first)


def trace_of(
    columns: Mapping[str, NDArray[Any]],
    *,
    layout: TraceLayout | None = None,
    unit_s: float = 1.0,
    source: str = "the trace",
) -> Trace:
    """``layout``: as stated beside the trace; without one it is taken from the rows."""
    _check_names(columns, source)
    numbers = {
        name: _numbers(columns[name], name, source)
        for name in (*WANTED, *OPTIONAL)
        if name in columns and name not in ("optype", *_TIMES)
    }
    times = {name: _times(columns[name], name, source) * unit_s for name in _TIMES}
    kinds, kind = np.unique(_names(columns["optype"], source), return_inverse=True)
    steps, step = np.unique(numbers["step"], return_inverse=True)
    found = _layout(numbers, layout, source)
    worker = numbers["dp_rank"] * found.stages + numbers["stage"]
    _check_workers(worker, source)
    rank = numbers.get("rank", worker)
    return Trace(
        layout=found,
        steps=tuple(steps.tolist()),
        kinds=tuple(kinds.tolist()),
        step=step.astype(np.int64),
        kind=kind.astype(np.int64),
        pipeline=numbers["dp_rank"],
        stage=numbers["stage"],
        rank=rank,
        peer=place_among(rank, worker),
        chunk=numbers.get("mc", np.full(len(step), -1, dtype=np.int64)),
        sequence=numbers["seq_id"],
        microbatch=numbers["mb_id"],
        start_s=times["start_ts"],
        took_s=times["duration"],
    )


def _check_names(columns: Mapping[str, NDArray[Any]], source: str) -> None:
    missing = [name for name in WANTED if name not in columns]
    if missing:
        raise ConfigError(
            f"{source} lacks the columns {', '.join(missing)}: "
            f"expected {', '.join(WANTED)} and, if known, {', '.join(OPTIONAL)}"
        )
    if not len(columns["step"]):
        raise ConfigError(f"{source} holds no operations: expected at least one step of a job")


def _numbers(column: NDArray[Any], name: str, source: str) -> Ints:
    lowest, highest = (0, MOST) if name in _PLACES else (-_EXACT, _EXACT)
    expected = f"whole numbers from {lowest:g} to {highest:g}"
    values = _floats(column, name, source, expected)
    if name in _MAY_BE_UNKNOWN:
        values = np.where(np.isnan(values), -1.0, values)
    good = (values >= lowest) & (values <= highest) & (values == np.floor(values))
    _refuse(values, ~good, name, source, expected)
    return values.astype(np.int64)


def _times(column: NDArray[Any], name: str, source: str) -> Floats:
    lowest = 0.0 if name == "duration" else -_LONGEST_S
    expected = f"finite times up to {_LONGEST_S:g}, and durations of 0 or more"
    values = _floats(column, name, source, expected)
    _refuse(values, ~((values >= lowest) & (values <= _LONGEST_S)), name, source, expected)
    return values


def _floats(column: NDArray[Any], name: str, source: str, expected: str) -> Floats:
    """Dates, flags and text have a value as numbers too, but never the one that was meant."""
    if column.dtype.kind == "O":
        odd = {type(each) for each in column} - _NUMBERS
    else:
        odd = set() if column.dtype.kind in "iuf" else {column.dtype.type}
    if odd:
        raise ConfigError(_of_type(odd.pop(), name, source, expected))
    return column.astype(np.float64)


def _names(column: NDArray[Any], source: str) -> NDArray[np.str_]:
    odd = {type(each) for each in column} - {str, np.str_}
    expected = "names of operations, such as forward-compute"
    if odd:
        raise ConfigError(_of_type(odd.pop(), "optype", source, expected))
    longest = max(column, key=len)
    if len(longest) > _LONGEST_NAME:
        raise ConfigError(
            f"{source}: column optype holds {longest[:20]!r}... of {len(longest)} letters; "
            f"expected {expected}"
        )
    return column.astype(str)


def _of_type(found: type, name: str, source: str, expected: str) -> str:
    return f"{source}: column {name} holds values of type {found.__name__}; expected {expected}"


def _refuse(values: Floats, bad: Flags, name: str, source: str, expected: str) -> None:
    if bad.any():
        raise ConfigError(
            f"{source}: column {name} holds {values[bad][0]:g} in {bad.sum()} of {len(bad)} rows; "
            f"expected {expected}"
        )


def _layout(numbers: Mapping[str, Ints], stated: TraceLayout | None, source: str) -> TraceLayout:
    pipelines, stages = int(numbers["dp_rank"].max()) + 1, int(numbers["stage"].max()) + 1
    if stated is None:
        chunks = int(numbers["mc"].max()) + 1 if "mc" in numbers else 1
        return TraceLayout(pipelines, stages, max(chunks, 1))
    if pipelines > stated.pipelines or stages > stated.stages:
        raise ConfigError(
            f"{source} is of at least {pipelines} pipelines x {stages} stages, but its description "
            f"says {stated.pipelines} x {stated.stages}: is it of another trace?"
        )
    return stated


def _check_workers(worker: Ints, source: str) -> None:
    num_workers = len(np.unique(worker))
    if num_workers > max(_MANY_WORKERS, len(worker) / _LEAST_OPS):
        raise ConfigError(
            f"{source}: {len(worker)} operations of {num_workers} workers; expected "
            f"{_LEAST_OPS} or more of each: check the columns dp_rank and stage"
        )


def place_among(name: Ints, owner: Ints) -> Ints:
    """0, 1, ... for the different names that one owner has."""
    pairs, row = np.unique(np.stack([owner, name]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0])
    place: Ints = (np.arange(pairs.shape[1]) - first)[row.ravel()].astype(np.int64)
    return place
