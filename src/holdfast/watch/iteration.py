"""Which stretch of a rank's calls is one iteration: the period of the sequence of calls.
Pure; knows nothing of time, of ranks, or of where the calls come from."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

REPEATS = 3  # exact repetitions that make a period
ENOUGH = 0.95  # autocorrelation, so that a validation now and then does no harm


class Period(NamedTuple):
    length: int  # calls of one iteration
    start: int  # where the first whole iteration begins in the calls given


def find_period(calls: Sequence[int], marks: Collection[int]) -> Period | None:
    """The smallest one. ``marks``: calls of which each iteration has at least one, if any."""
    sequence = np.asarray(calls, dtype=np.int64)
    longest = len(sequence) // REPEATS
    ends_alike = np.flatnonzero(sequence[::-1][1 : longest + 1] == sequence[-1:]) + 1
    for length in map(int, ends_alike):
        if _repeats(sequence, length) and _marked(sequence[-length:], marks):
            return Period(length, _start(sequence, length, marks))
    return None


def autocorrelation(sequence: np.ndarray, lag: int) -> float:
    """Of the calls as unit vectors: the fraction that is the same ``lag`` calls later."""
    return float(np.mean(sequence[lag:] == sequence[:-lag]))


def _repeats(sequence: np.ndarray, length: int) -> bool:
    tail = sequence[-REPEATS * length :]
    if not np.array_equal(tail[length:], tail[:-length]):
        return False
    # The older half may hold what is done once at the start.
    recent = sequence[-max(len(sequence) // 2, REPEATS * length) :]
    return autocorrelation(recent, length) >= ENOUGH


def _marked(pattern: np.ndarray, marks: Collection[int]) -> bool:
    return not marks or bool(np.isin(pattern, list(marks)).any())


def _start(sequence: np.ndarray, length: int, marks: Collection[int]) -> int:
    """After the last call that breaks the period; an iteration ends with a mark, if any."""
    breaks = np.flatnonzero(sequence[length:] != sequence[:-length])
    first = int(breaks[-1]) + 1 if len(breaks) else 0
    ends = np.isin(sequence[first + length - 1 :], list(marks))
    return first + (int(np.argmax(ends)) if ends.any() else 0)
