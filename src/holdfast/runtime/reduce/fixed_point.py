"""Sums of fp32 numbers in 64-bit integers: the result depends on what is added, never on order.

A number g is held as rint(g * 2**exponent). One too large for that is split exactly over coarser
bins, by its own value alone. Importing compiles the kernels (or loads them from Numba's cache),
so import before forking.
"""

import numba
import numpy as np
from numpy.typing import NDArray

BIN_BITS = 40  # bin k counts in units of 2**(BIN_BITS * k - exponent)
SUM_BITS = 62  # no bin's sum over all contributions needs more than this
MAX_CONTRIBUTIONS = 2 ** (SUM_BITS - BIN_BITS)  # the low part of a split must fit its bin too
FIRST_EXPONENT = 44  # before anything is known about a gradient
HEADROOM_BITS = 10  # how far a contribution may exceed the last step's sum without being split
MIN_EXPONENT = -128  # enough for the largest fp32 number
MAX_EXPONENT = 149  # every fp32 number is a whole multiple of 2**-149: finer gains nothing
LANES = 16  # kernels that sum floats do so in this many lanes, whatever the CPU's vectors are

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@numba.njit("int64(int64[::1], float32[::1], float64, float64)", cache=True, nogil=True)
def add_scaled(sums: Ints, values: Floats, scale: float, limit: float) -> int:
    """Add ``values * scale`` to ``sums``; return how many were left out as too large or NaN."""
    left_out = 0
    for i in range(values.size):
        scaled = np.float64(values[i]) * scale
        fits = abs(scaled) <= limit
        left_out += not fits
        sums[i] += np.int64(np.rint(scaled if fits else 0.0))
    return left_out


@numba.njit("void(float32[::1], int64[::1], float64)", cache=True, nogil=True)
def round_scaled(out: Floats, sums: Ints, unit: float) -> None:
    """``out = sums * unit``, rounded once: a power of two scales normal numbers exactly."""
    for i in range(sums.size):
        out[i] = np.float32(np.float64(np.float32(sums[i])) * unit)


@numba.njit("UniTuple(float64, 2)(float32[::1])", cache=True, nogil=True)
def measure(values: Floats) -> tuple[float, float]:
    """Sum of squares and largest magnitude; the size must be a multiple of LANES.

    NaN shows in the sum of squares only. Finite values give a finite sum.
    """
    squares = np.zeros(LANES, np.float64)
    largest = np.zeros(LANES, np.float64)
    for start in range(0, values.size, LANES):
        for lane in range(LANES):
            value = np.float64(values[start + lane])
            squares[lane] += value * value
            largest[lane] = abs(value) if abs(value) > largest[lane] else largest[lane]
    total, top = 0.0, 0.0
    for lane in range(LANES):
        total += squares[lane]
        top = largest[lane] if largest[lane] > top else top
    return total, top


def contribution_bits(num_contributions: int) -> int:
    """A contribution of at most 2**bits in magnitude cannot overflow the sum of all of them."""
    return SUM_BITS - _ceil_log2(num_contributions)


def next_exponent(largest: float, num_contributions: int) -> int:
    """The finest exponent with headroom over ``largest``, the biggest element of a step's sum."""
    mantissa, power = np.frexp(largest)
    ceil_log2 = int(power) - (mantissa == 0.5)
    finest = contribution_bits(num_contributions) - HEADROOM_BITS - ceil_log2
    return int(min(max(finest, MIN_EXPONENT), MAX_EXPONENT))


def split(values: Floats, exponent: int, limit_bits: int) -> Ints:
    """Rows (bin, index, count) that add up exactly to those ``values`` which exceed the limit.

    The high part goes to the smallest bin that holds it, the rest to the bin below. There the
    value is a whole number, as it is beyond 2**BIN_BITS and fp32 has but 24 bits. NaN, Inf: no row.
    """
    scaled = values.astype(np.float64) * 2.0**exponent
    index = np.flatnonzero(np.isfinite(scaled) & (np.abs(scaled) > 2.0**limit_bits))
    _, power = np.frexp(scaled[index])
    bins = -((limit_bits - power.astype(np.int64)) // BIN_BITS)
    in_bin = np.ldexp(scaled[index], -BIN_BITS * bins)
    high = np.trunc(in_bin)
    low = (in_bin - high) * 2.0**BIN_BITS
    rows_high = np.stack([bins, index, high.astype(np.int64)], axis=1)
    rows_low = np.stack([bins - 1, index, low.astype(np.int64)], axis=1)
    return np.concatenate([rows_high, rows_low])


def joined(rows: Ints, more: Ints) -> Ints:
    """The sum of both, in one row for each (bin, index)."""
    both = np.concatenate([rows, more])
    keys, place = np.unique(both[:, :2], axis=0, return_inverse=True)
    counts = np.zeros(len(keys), np.int64)
    np.add.at(counts, place.reshape(-1), both[:, 2])
    return np.concatenate([keys, counts[:, None]], axis=1)


def round_split(out: Floats, sums: Ints, exponent: int, rows: Ints) -> None:
    """Do for the elements named in ``rows`` what ``round_scaled`` does, their bins added."""
    counts = {index: int(sums[index]) for index in rows[:, 1].tolist()}
    for bin_number, index, count in rows.tolist():
        counts[index] += count << (BIN_BITS * bin_number)
    for index, count in counts.items():
        out[index] = _rounded(count, exponent)


def _rounded(count: int, exponent: int) -> np.float32:
    """``count * 2**-exponent`` for an integer of any size, rounded once."""
    shift = max(0, abs(count).bit_length() - SUM_BITS)
    kept, dropped = divmod(abs(count), 1 << shift)
    kept |= dropped != 0  # far below the last bit of fp32: it only breaks a false tie
    out = np.empty(1, np.float32)
    round_scaled(out, np.array([kept if count >= 0 else -kept]), 2.0 ** (shift - exponent))
    return np.float32(out[0])


def _ceil_log2(count: int) -> int:
    return (count - 1).bit_length()
