"""Rows of the index: numbers of fixed size, in a file that is mapped and not read.

A row is a finished step, or any other event but the times of operations, which have none: a row
says which steps those are of that stand before it. Every row has a check; none is believed blindly.
"""

import struct
import zlib
from typing import Any, TypeAlias

import numpy as np

from holdfast.observability.events import RunStarted, StepFinished, TookOver
from holdfast.observability.events.kinds import Event
from holdfast.observability.log.table import flags_of
from holdfast.observability.log.tail import FilePlace

Rows: TypeAlias = np.ndarray[Any, np.dtype[Any]]

RARE = 1 << 15  # a flag: no finished step; ``tokens`` is the checksum of the line
NO_STEP = 2**32 - 1
ROW = np.dtype(
    [
        ("step", "<i8"),
        ("at_s", "<f8"),
        ("took_s", "<f8"),
        ("loss", "<f8"),
        ("norm", "<f8"),
        ("tokens", "<i8"),
        ("lr", "<f8"),
        ("loss_scale", "<f8"),
        ("end", "<u8"),  # of the line, in its file
        ("file", "<u4"),
        ("kept", "<u4"),  # lines of the file that are no times of operations, with this one
        ("ops_first", "<u4"),  # steps of the times of operations between the row before and this
        ("ops_last", "<u4"),
        ("rare_before", "<u4"),
        ("flags", "<u2"),
        ("launch", "<u2"),
        ("check", "<u4"),
    ]
)
_PACK = struct.Struct("<qddddqdd QIIIII HH I").pack
_WORDS = ROW.itemsize // 4
_WEIGHTS = (np.arange(1, _WORDS, dtype=np.uint64) * 2654435761 % 2**32 | 1).astype(np.uint32)
_SALT = np.uint32(0x9E3779B9)
_AT_ONCE = 1 << 16  # rows


class RowMaker:
    """From events in their order to rows. ``launch`` and ``num_rare``: of what came before."""

    def __init__(self, launch: int = 0, num_rare: int = 0) -> None:
        self._launch, self._num_rare = launch, num_rare
        self._first, self._last = NO_STEP, NO_STEP

    @property
    def operations(self) -> tuple[int, int]:
        """Steps of the times of operations since the last row."""
        return self._first, self._last

    def saw_operations(self, step: int) -> None:
        if self._first == NO_STEP:
            self._first = self._last = step
        else:
            self._first, self._last = min(self._first, step), max(self._last, step)

    def begin_file(self) -> None:
        """What stood in the one before is of no use for finding anything in this one."""
        self._first, self._last = NO_STEP, NO_STEP

    def row(self, event: Event, text: bytes, after: FilePlace) -> bytes:
        """Without its check: :func:`seal` gives it to many at once."""
        if isinstance(event, StepFinished):
            norm = event.gradient_norm
            made = self._packed(
                event.step,
                event.at_s,
                event.took_s,
                event.loss,
                float("nan") if norm is None else norm,
                event.tokens,
                event.lr,
                event.loss_scale,
                flags_of(event),
                after,
            )
        else:
            self._launch += isinstance(event, RunStarted | TookOver)
            crc = zlib.crc32(text)
            made = self._packed(0, event.at_s, 0.0, 0.0, 0.0, crc, 0.0, 0.0, RARE, after)
            self._num_rare += 1
        self.begin_file()
        return made

    def _packed(self, *values: Any) -> bytes:
        *numbers, flags, after = values
        launch = min(self._launch, 2**16 - 1)
        place = (after.end, after.number, after.num_kept, self._first, self._last)
        return _PACK(*numbers, *place, self._num_rare, flags, launch, 0)


def empty_rows() -> Rows:
    return np.empty(0, ROW)


def seal(rows: Rows) -> None:
    for begin in range(0, len(rows), _AT_ONCE):
        some = rows[begin : begin + _AT_ONCE]
        some["check"] = _checks(some)


def num_sound(rows: Rows) -> int:
    """Rows before the first that is damaged, or out of order."""
    before = (0, 0)
    for begin in range(0, len(rows), _AT_ONCE):
        some = rows[begin : begin + _AT_ONCE]
        sound = (some["check"] == _checks(some)) & _in_order(some, *before)
        if not sound.all():
            return begin + int(np.argmin(sound))
        before = (int(some["file"][-1]), int(some["end"][-1]))
    return len(rows)


def _checks(rows: Rows) -> Rows:
    words = np.ascontiguousarray(rows).view("<u4").reshape(len(rows), _WORDS)[:, :-1]
    mixed: Rows = (words * _WEIGHTS).sum(axis=1, dtype=np.uint32) + _SALT
    return mixed


def _in_order(rows: Rows, file: int, end: int) -> Rows:
    files = np.concatenate(([file], rows["file"])).astype(np.int64)
    ends = np.concatenate(([end], rows["end"])).astype(np.int64)
    onward: Rows = (files[1:] > files[:-1]) | ((files[1:] == files[:-1]) & (ends[1:] > ends[:-1]))
    return onward


def is_step(rows: Rows) -> Rows:
    mask: Rows = (rows["flags"] & RARE) == 0
    return mask
