"""Finished steps of a run as columns of numbers: a million of them are no burden."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any, TypeAlias

import numpy as np

from holdfast.observability.events import Event, RunStarted, StepFinished, TookOver, WorkerStep

Column: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class StepFlag(IntFlag):
    """What :class:`StepFinished` says in words that are true or not."""

    CLIPPED = 1
    SKIPPED = 2
    EMPTY = 4
    NO_NORM = 8  # the step has no gradient norm: it is NaN in the table


_TYPES = {
    "step": np.int64,
    "at_s": np.float64,
    "took_s": np.float64,
    "loss": np.float64,
    "norm": np.float64,
    "tokens": np.int64,
    "lr": np.float64,
    "loss_scale": np.float64,
    "flags": np.uint16,
    "launch": np.uint16,
    "rare_before": np.int64,
}


@dataclass(frozen=True, eq=False, slots=True)
class StepTable:
    """One row a finished step, in the order in which they finished.

    A step that ran again, after all had gone back, has a row for each time. ``launch`` counts from
    1: times of two launches have nothing in common. ``rare_before`` is how many of ``RunLog.rare``
    came before the row: with it both are in one order again.
    """

    step: Column  # from 0 on
    at_s: Column
    took_s: Column
    loss: Column
    norm: Column  # NaN: none
    tokens: Column
    lr: Column
    loss_scale: Column
    flags: Column  # of StepFlag
    launch: Column
    rare_before: Column

    @classmethod
    def of_rows(cls, rows: Column, are_steps: Column) -> "StepTable":
        """Of rows of the index, which have these names."""
        found = (rows[name][are_steps].astype(kind, copy=False) for name, kind in _TYPES.items())
        return cls(*found)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "StepTable":
        """Of events in their order, of all kinds: others than finished steps only count."""
        rows, launch, num_rare = [], 0, 0
        for event in events:
            if isinstance(event, StepFinished):
                rows.append((*_values(event), launch, num_rare))
            elif not isinstance(event, WorkerStep):
                num_rare += 1
                launch += isinstance(event, RunStarted | TookOver)
        columns = zip(*rows, strict=True) if rows else [()] * len(_TYPES)
        pairs = zip(_TYPES.items(), columns, strict=True)
        return cls(**{name: np.array(values, kind) for (name, kind), values in pairs})

    def __len__(self) -> int:
        return len(self.step)

    def __getitem__(self, rows: slice | Column) -> "StepTable":
        """Some of the rows: a slice, a mask, or their numbers."""
        return StepTable(*(getattr(self, each.name)[rows] for each in fields(self)))

    def event(self, row: int) -> StepFinished:
        """The row as the event that it was."""
        flags = StepFlag(int(self.flags[row]))
        return StepFinished(
            at_s=float(self.at_s[row]),
            step=int(self.step[row]),
            loss=float(self.loss[row]),
            gradient_norm=None if flags & StepFlag.NO_NORM else float(self.norm[row]),
            tokens=int(self.tokens[row]),
            took_s=float(self.took_s[row]),
            clipped=bool(flags & StepFlag.CLIPPED),
            skipped=bool(flags & StepFlag.SKIPPED),
            empty=bool(flags & StepFlag.EMPTY),
            loss_scale=float(self.loss_scale[row]),
            lr=float(self.lr[row]),
        )

    def last(self) -> StepFinished | None:
        """The newest; None: no step has finished."""
        return self.event(-1) if len(self) else None

    def final(self) -> "StepTable":
        """Of each step what came of it in the end: its last row, ordered by step."""
        _, from_the_end = np.unique(self.step[::-1], return_index=True)
        return self[len(self) - 1 - from_the_end]


def flags_of(event: StepFinished) -> int:
    return (
        (StepFlag.CLIPPED if event.clipped else 0)
        | (StepFlag.SKIPPED if event.skipped else 0)
        | (StepFlag.EMPTY if event.empty else 0)
        | (StepFlag.NO_NORM if event.gradient_norm is None else 0)
    )


def _values(event: StepFinished) -> tuple[float, ...]:
    norm = np.nan if event.gradient_norm is None else event.gradient_norm
    numbers = (event.step, event.at_s, event.took_s, event.loss, norm, event.tokens)
    return (*numbers, event.lr, event.loss_scale, flags_of(event))
