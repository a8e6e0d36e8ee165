"""A script, run as a process of its own: multiplies two matrices with AMX and ends.

A machine that shows these instructions and refuses them kills it, which is the answer. One that
executes them but does not describe its tiles is no better: oneDNN sets tiles up by the
description, and dies. Needs neither torch nor Holdfast; started by ``host/instruction_set.py``.
"""

import ctypes
import mmap
import struct
import sys

WORKS, WRONG, DENIED, UNDESCRIBED = 0, 3, 4, 5  # exit codes
UNUSABLE = (WRONG, DENIED, UNDESCRIBED)

_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
_PR_SET_DUMPABLE = 4
_TILE_LEAF, _PALETTE = 0x1D, 1  # where CPUID describes tiles, and which of them oneDNN uses
_TILES, _ROWS, _ROW_BYTES = 8, 16, 64  # of that palette, at their largest
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
# void cpuid(leaf: edi, subleaf: esi, registers: rdx), the registers a, b, c, d
_CPUID = bytes.fromhex(
    "53"  # push rbx
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)


def described() -> bool:
    """Whether CPUID says what tiles there are. Some hypervisors end its list before that."""
    highest = _cpuid(0, 0)[0]
    if highest < _TILE_LEAF or _cpuid(_TILE_LEAF, 0)[0] < _PALETTE:
        return False
    _, names_and_row_bytes, rows, _ = _cpuid(_TILE_LEAF, _PALETTE)
    found = (names_and_row_bytes >> 16, rows & 0xFFFF, names_and_row_bytes & 0xFFFF)
    return found == (_TILES, _ROWS, _ROW_BYTES)


def _cpuid(leaf: int, subleaf: int) -> tuple[int, ...]:
    registers = ctypes.create_string_buffer(16)
    kinds = (ctypes.c_uint, ctypes.c_uint, ctypes.c_char_p)
    _call(_CPUID, kinds, (leaf, subleaf, ctypes.cast(registers, ctypes.c_char_p)))
    return struct.unpack("<4I", registers.raw)


def _call(code: bytes, kinds: tuple[type, ...], arguments: tuple[object, ...]) -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(None, *kinds)(address)(*arguments)


def permitted() -> bool:
    """Linux gives the registers to those that ask for them."""
    libc = ctypes.CDLL(None, use_errno=True)
    number, request, state = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))
    return bool(libc.syscall(number, request, state) == 0)


def multiply() -> bool:
    """Ones times ones; False: the product is wrong. May end this process."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # its death is nothing to look into
    tile_bytes = _ROWS * _ROW_BYTES
    sizes = [*[_ROW_BYTES] * _TILES, *[_ROWS] * _TILES]
    config = struct.pack("<BB14x8H16x8B8x", _PALETTE, 0, *sizes)
    ones = _ONE * (tile_bytes // len(_ONE))
    product = ctypes.create_string_buffer(tile_bytes)
    kinds = (*[ctypes.c_char_p] * 4, ctypes.c_long)
    into = ctypes.cast(product, ctypes.c_char_p)
    _call(_MULTIPLY, kinds, (config, ones, ones, into, _ROW_BYTES))
    expected = float(_ROW_BYTES // len(_ONE))  # one product for each number of a row
    return set(struct.unpack(f"<{tile_bytes // 4}f", product.raw)) == {expected}


if __name__ == "__main__":
    if not permitted():
        sys.exit(DENIED)
    if not described():
        sys.exit(UNDESCRIBED)
    sys.exit(WORKS if multiply() else WRONG)
