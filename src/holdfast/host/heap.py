"""Memory that this process holds and does not use: gaps between what its allocator has given out.

Only glibc is known; with another allocator nothing is given back. Loads no library but C's own.
"""

import ctypes
import resource
from pathlib import Path

LEAST_BYTES = 1 << 30  # a process that holds less does not look
_SLACK, _SLACK_BYTES = 1.1, 64 << 20  # no gap fits all
STATM = Path("/proc/self/statm")


class _MallocInfo(ctypes.Structure):
    """What mallinfo2() fills in, of all threads together. Ten numbers; two are of use here."""

    _fields_ = (
        ("_heap", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("_unused", ctypes.c_size_t * 2),
        ("in_heap", ctypes.c_size_t),
        ("_free", ctypes.c_size_t * 2),
    )


_libc = ctypes.CDLL(None)
IS_KNOWN = hasattr(_libc, "mallinfo2")
if IS_KNOWN:
    _libc.mallinfo2.restype = _MallocInfo


def trim() -> None:
    """Gaps go back to the system."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def in_use() -> tuple[int, int]:
    """Bytes that are given out: of the heap, and of pages that are a block's alone."""
    info = _libc.mallinfo2()
    return int(info.in_heap), int(info.mapped)


def held_bytes() -> int:
    """That are this process's alone: without the pages of libraries. 0: nobody can tell."""
    try:
        _, resident, shared, *_ = map(int, STATM.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


def _was_large() -> bool:
    """Asked often: cheaper than how much is held now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 >= LEAST_BYTES


class Gaps:
    """Of a process that uses about as much of its heap in every step, at other places of it.

    What is freed and soon taken again stays: pages cost time. Only what is held beyond the most
    that the heap ever had in use at once is given back.
    """

    def __init__(self) -> None:
        self._most_in_heap = 0
        self._no_gap_bytes = 0  # held outside of the heap: Python has memory of its own

    def look(self) -> None:
        """Where much is in use."""
        if IS_KNOWN and _was_large():
            self._most_in_heap = max(self._most_in_heap, in_use()[0])

    def give_back(self) -> None:
        """Where little is, before more is taken. Not before it was looked once."""
        if not self._most_in_heap:
            return
        in_heap, mapped = in_use()
        soon_taken = max(0, self._most_in_heap - in_heap)
        gaps = held_bytes() - in_heap - mapped - self._no_gap_bytes
        if gaps > _SLACK * soon_taken + _SLACK_BYTES:
            trim()
            self._no_gap_bytes = max(0, held_bytes() - in_heap - mapped)
