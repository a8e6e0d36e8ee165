"""A script, run as a process of its own: multiplies two matrices with AMX and ends.

A machine that shows these instructions and refuses them kills it, which is the answer. Needs
neither torch nor Holdfast; started by ``instruction_set.py``.
"""

import ctypes
import mmap
import struct
import sys

WORKS, WRONG, DENIED = 0, 3, 4  # exit codes

_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
_PR_SET_DUMPABLE = 4
_ROWS, _ROW_BYTES = 16, 64  # of a tile at its largest
_ONE = b"\x80\x3f"  # in bfloat16
# void multiply(config: rdi, a: rsi, b: rdx, c: rcx, row_bytes: r8)
_MULTIPLY = bytes.fromhex(
    "c4e2784907"  # ldtilecfg [rdi]
    "c4e27b49c0"  # tilezero tmm0
    "c4a27b4b0c06"  # tileloadd tmm1, [rsi + r8]
    "c4a27b4b1402"  # tileloadd tmm2, [rdx + r8]
    "c4e26a5cc1"  # tdpbf16ps tmm0, tmm1, tmm2
    "c4a27a4b0401"  # tilestored [rcx + r8], tmm0
    "c4e27849c0"  # tilerelease
    "c3"  # ret
)


def permitted() -> bool:
    """Linux gives the registers to those that ask for them."""
    libc = ctypes.CDLL(None, use_errno=True)
    number, request, state = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))
    return bool(libc.syscall(number, request, state) == 0)


def multiply() -> bool:
    """Ones times ones; False: the product is wrong. May end this process."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # its death is nothing to look into
    tile_bytes = _ROWS * _ROW_BYTES
    config = struct.pack("<BB14x8H16x8B8x", 1, 0, *[_ROW_BYTES] * 8, *[_ROWS] * 8)
    ones = _ONE * (tile_bytes // len(_ONE))
    product = ctypes.create_string_buffer(tile_bytes)
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_MULTIPLY)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    kinds = [ctypes.c_char_p] * 4 + [ctypes.c_long]
    function = ctypes.CFUNCTYPE(None, *kinds)(address)
    function(config, ones, ones, ctypes.cast(product, ctypes.c_char_p), _ROW_BYTES)
    expected = float(_ROW_BYTES // len(_ONE))  # one product for each number of a row
    return set(struct.unpack(f"<{tile_bytes // 4}f", product.raw)) == {expected}


if __name__ == "__main__":
    if not permitted():
        sys.exit(DENIED)
    sys.exit(WORKS if multiply() else WRONG)
