"""Frames of the boundary log: one fact each, named in a fixed header, sealed by checksums.

    header | its checksum | shapes of the tensors | their bytes | checksum of all of it

The header has a checksum of its own, so that a log can be read through without its payloads. Knows
nothing of files, and nothing of torch.
"""

import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import NamedTuple

FORMAT = 1  # of segments and frames: a log of another one is not read
FRAME_MAGIC = b"HFbl"

# magic, kind, flags, tensors | stage, attempt, microbatch, bytes of shapes | step, payload bytes
_HEADER = struct.Struct("<4sBBH4I2Q")
_CRC = struct.Struct("<I")
_SEALED_HEADER = struct.Struct(_HEADER.format + "I")

HEADER_BYTES = _HEADER.size + _CRC.size
SEAL_BYTES = _CRC.size


SAID_AGAIN = 1  # as the attempt of a verdict: it was written once more when a checkpoint was whole


class FrameKind(IntEnum):
    """The values are in files."""

    ACTIVATION = 1  # outputs of the stage, for the next one
    GRADIENT = 2  # gradient for the stage's input, for the stage before
    VERDICT = 3  # norm, scale and whether to skip; of no stage and no micro-batch
    TIED = 4  # reduced gradient of the tied parameter whose number stands for the micro-batch

    __hash__ = int.__hash__  # names are keys, and an enum's own hash is four times as slow


_KINDS = {int(kind): kind for kind in FrameKind}


class Flag(IntFlag):
    """The values are in files."""

    NONE = 0
    TOUCHED = 1  # TIED: some micro-batch has contributed
    SKIP = 2  # VERDICT: the step is left out
    SCALED = 4  # VERDICT: there is a scale


class FrameName(NamedTuple):
    """What a frame is of."""

    kind: FrameKind
    stage: int
    step: int
    attempt: int
    microbatch: int

    @property
    def fact(self) -> "FrameName":
        """The same for all frames that say the same, whoever wrote them."""
        if self.kind < FrameKind.VERDICT:  # most of them, and there are many
            return self
        if self.kind is FrameKind.VERDICT:
            return FrameName(self.kind, 0, self.step, 0, 0)
        return self._replace(stage=0)

    @property
    def last_use(self) -> int:
        """The newest checkpoint that a replay can start from and still ask for this."""
        return self.step + self.is_said_again

    @property
    def is_said_again(self) -> bool:
        """A verdict that outlives its step: it tells how often the step after it was tried."""
        return self.kind is FrameKind.VERDICT and self.attempt == SAID_AGAIN

    def __str__(self) -> str:
        match self.kind:
            case FrameKind.VERDICT:
                return "verdict"
            case FrameKind.TIED:
                return f"gradient of tied parameter {self.microbatch}, attempt {self.attempt}"
            case FrameKind.ACTIVATION:
                boundary = self.stage
            case FrameKind.GRADIENT:
                boundary = self.stage - 1
        of = f"micro-batch {self.microbatch}, attempt {self.attempt}"
        return f"{self.kind.name.lower()} of {of}, over boundary {boundary}"


class LogFrameHeader(NamedTuple):
    name: FrameName
    flags: int  # see Flag; making one of them takes longer than reading a header
    num_tensors: int
    shapes_bytes: int
    payload_bytes: int  # of shapes and tensors

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes + SEAL_BYTES


def encode_header(header: LogFrameHeader) -> bytes:
    (kind, stage, step, attempt, microbatch), flags, num_tensors, shapes, payload = header
    numbers = (stage, attempt, microbatch, shapes, step, payload)
    body = _HEADER.pack(FRAME_MAGIC, kind, flags, num_tensors, *numbers)
    return body + _CRC.pack(zlib.crc32(body))


def decode_header(data: bytes) -> LogFrameHeader | None:
    """None: this is no header, or it was changed."""
    if len(data) != HEADER_BYTES:
        return None
    magic, kind, flags, num_tensors, stage, attempt, microbatch, shapes, step, payload, crc = (
        _SEALED_HEADER.unpack(data)
    )
    if magic != FRAME_MAGIC or kind not in _KINDS or zlib.crc32(data[:-SEAL_BYTES]) != crc:
        return None
    name = FrameName(_KINDS[kind], stage, step, attempt, microbatch)
    return LogFrameHeader(name, flags, num_tensors, shapes, payload)


def seal(parts: Iterable[bytes | memoryview]) -> bytes:
    """The checksum that ends a frame."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return _CRC.pack(value)
