"""How a tensor differs from an estimate of it, in units in the last place: a few bits an element.

Estimate and residual together give the tensor back bit for bit, whatever it holds. Works on
blocks, each in the form that is smallest for it. Importing compiles the kernels (or loads them
from Numba's cache), so import before forking. Knows nothing of where estimates come from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16  # elements: a place within a block takes two bytes
WHOLE = 32  # bits of an element that is kept as it was
_SMALL_BYTES, _LARGE_BYTES = 3, 6  # an exception: its place, and its difference in 1 or 4 bytes
_WIDTHS = (0, 2, 4, 8)  # bits that an element may take; what does not fit is an exception

Bits = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]
Floats = NDArray[np.float32]
_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


def compiled(signature: str) -> Callable[[_Kernel], _Kernel]:
    """Without fastmath: the same bits each time, wherever in memory the numbers lie."""

    def compile_now(kernel: _Kernel) -> _Kernel:
        made: Any = numba.njit(signature, cache=True, nogil=True, error_model="numpy")(kernel)
        return made  # type: ignore[no-any-return]

    return compile_now


@dataclass(frozen=True, slots=True)
class Residual:
    table: Table  # for each block: bits an element, number of small exceptions, end in payload
    payload: Bytes

    @property
    def num_bytes(self) -> int:
        return int(self.table.nbytes + self.payload.nbytes)

    @property
    def is_copied(self) -> bool:
        """Whether the estimate was of no use for a block, so that all its values were kept."""
        return bool((self.table[:, 0] == WHOLE).any())


def residual_of(before: Floats, estimate: Floats) -> Residual:
    num_blocks = -(-before.size // BLOCK)
    table = np.empty((num_blocks, 3), np.int64)
    payload = np.empty(4 * before.size, np.uint8)  # enough for any; most is never touched
    used = _encode(before.view(np.int32), estimate.view(np.int32), table, payload)
    return Residual(table, payload[:used].copy())


def correct(estimate: Floats, residual: Residual) -> None:
    """Make the estimate, in place, what the residual was taken of."""
    _decode(estimate.view(np.int32), residual.table, residual.payload)


@compiled("int32(int32)")
def _ordered(bits: np.int32) -> np.int32:
    """Neighbouring floats become neighbouring integers; it is its own inverse."""
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@compiled("int64(int64)")
def _limit(width: int) -> int:
    return (1 << (width - 1)) - 1 if width else 0


@compiled("UniTuple(int64, 4)(int32[::1], int32[::1], int32[::1], int64)")
def _compare(before: Bits, estimate: Bits, out: Bits, size: int) -> tuple[int, int, int, int]:
    """Differences, modulo 2**32, and how many of them exceed each limit."""
    zero = one = two = three = 0
    for i in range(size):
        difference = np.int32(_ordered(before[i]) - _ordered(estimate[i]))
        out[i] = difference
        zero += int(difference != 0)
        one += int(difference > 1 or difference < -1)
        two += int(difference > 7 or difference < -7)
        three += int(difference > 127 or difference < -127)
    return zero, one, two, three


@compiled("UniTuple(int64, 2)(int64, UniTuple(int64, 4))")
def _smallest(size: int, counts: tuple[int, int, int, int]) -> tuple[int, int]:
    """Bits an element, and bytes in all."""
    width, num_bytes = WHOLE, 4 * size
    for form in range(4):
        exceptions = _SMALL_BYTES * (counts[form] - counts[3]) + _LARGE_BYTES * counts[3]
        needed = (size * _WIDTHS[form] + 7) // 8 + exceptions
        if needed < num_bytes:
            width, num_bytes = _WIDTHS[form], needed
    return width, num_bytes


@compiled("int64(int32, int64)")
def _field(difference: np.int32, limit: int) -> int:
    """Exceptions are written as no difference."""
    return limit + int(difference if -limit <= difference <= limit else 0)


@compiled("void(int32[::1], uint8[::1])")
def _pack_pairs(differences: Bits, out: Bytes) -> None:
    """Two bits an element."""
    whole = differences.size // 4
    for byte in range(whole):
        four = differences[4 * byte : 4 * byte + 4]
        low = _field(four[0], 1) | _field(four[1], 1) << 2
        out[byte] = low | _field(four[2], 1) << 4 | _field(four[3], 1) << 6
    for i in range(4 * whole, differences.size):
        before = 0 if i % 4 == 0 else out[i // 4]
        out[i // 4] = before | _field(differences[i], 1) << (2 * (i % 4))


@compiled("void(int32[::1], uint8[::1])")
def _pack_halves(differences: Bits, out: Bytes) -> None:
    """Four bits an element."""
    for i in range(0, differences.size, 2):
        high = _field(differences[i + 1], 7) if i + 1 < differences.size else 0
        out[i // 2] = _field(differences[i], 7) | high << 4


@compiled("void(int32[::1], uint8[::1])")
def _pack_bytes(differences: Bits, out: Bytes) -> None:
    for i in range(differences.size):
        out[i] = _field(differences[i], 127)


@compiled("int64(int32[::1], int64, UniTuple(int64, 4), uint8[::1])")
def _pack(differences: Bits, width: int, counts: tuple[int, ...], out: Bytes) -> int:
    limit, size = _limit(width), differences.size
    fields = (size * width + 7) // 8
    form = 0
    if width == 2:
        form = 1
        _pack_pairs(differences, out)
    elif width == 4:
        form = 2
        _pack_halves(differences, out)
    elif width == 8:
        form = 3
        _pack_bytes(differences, out)
    num_small = counts[form] - counts[3]
    small, large = fields, fields + _SMALL_BYTES * num_small
    for i in range(size if counts[form] else 0):
        difference = np.int64(differences[i])
        if abs(difference) <= limit:
            continue
        is_small = abs(difference) <= 127
        at = small if is_small else large
        out[at], out[at + 1] = i & 255, i >> 8
        if is_small:
            out[at + 2] = difference & 255
            small += _SMALL_BYTES
        else:
            for byte in range(4):
                out[at + 2 + byte] = (difference >> (8 * byte)) & 255
            large += _LARGE_BYTES
    return num_small


@compiled("int64(int32[::1], int32[::1], int64[:, ::1], uint8[::1])")
def _encode(before: Bits, estimate: Bits, table: Table, payload: Bytes) -> int:
    used = 0
    differences = np.empty(BLOCK, np.int32)
    for block in range(table.shape[0]):
        start = block * BLOCK
        size = min(BLOCK, before.size - start)
        counts = _compare(before[start:], estimate[start:], differences, size)
        width, num_bytes = _smallest(size, counts)
        if width == WHOLE:
            payload[used : used + 4 * size] = before[start : start + size].view(np.uint8)
            num_small = 0
        else:
            part = payload[used : used + num_bytes]
            num_small = _pack(differences[:size], width, counts, part)
        used += num_bytes
        table[block, 0], table[block, 1], table[block, 2] = width, num_small, used
    return used


@compiled("void(int32[::1], int64, int64, uint8[::1])")
def _unpack(values: Bits, width: int, num_small: int, packed: Bytes) -> None:
    fields = (values.size * width + 7) // 8
    if width:
        limit, share, mask = _limit(width), 8 // width, (1 << width) - 1
        for i in range(values.size):
            field = (np.int64(packed[i // share]) >> (width * (i % share))) & mask
            values[i] = _ordered(np.int32(_ordered(values[i]) + field - limit))
    large = fields + _SMALL_BYTES * num_small
    for at in range(fields, large, _SMALL_BYTES):
        i = packed[at] | np.int64(packed[at + 1]) << 8
        difference = np.int64(np.int8(packed[at + 2]))
        values[i] = _ordered(np.int32(_ordered(values[i]) + difference))
    for at in range(large, packed.size, _LARGE_BYTES):
        i = packed[at] | np.int64(packed[at + 1]) << 8
        difference = np.int64(0)
        for byte in range(4):
            difference |= np.int64(packed[at + 2 + byte]) << (8 * byte)
        values[i] = _ordered(np.int32(_ordered(values[i]) + difference))


@compiled("void(int32[::1], int64[:, ::1], uint8[::1])")
def _decode(values: Bits, table: Table, payload: Bytes) -> None:
    used = np.int64(0)
    for block in range(table.shape[0]):
        width, num_small, end = table[block, 0], table[block, 1], table[block, 2]
        part = values[block * BLOCK : min((block + 1) * BLOCK, values.size)]
        if width == WHOLE:
            part.view(np.uint8)[:] = payload[used:end]
        else:
            _unpack(part, width, num_small, payload[used:end])
        used = end
