"""Boundary logs for the tests: written by a real writer, then looked at or damaged."""

import threading
from pathlib import Path

import torch
from torch import Tensor

from holdfast.storage.log.frame import FrameKind
from holdfast.storage.log.reader import LogReader
from holdfast.storage.log.segment import LogIdentity, opened, read_segment_header, scan
from holdfast.storage.log.writer import LogWriter

RUN, WORKER = "7", "0.1"
LIMIT_S = 60.0  # no test waits this long unless it fails
FOR_EVER_S = 1e6
PLENTY = 1 << 40


class States(list[tuple[bool, int, str]]):
    """What a writer has reported."""

    def __call__(self, logging: bool, step: int, reason: str) -> None:
        self.append((logging, step, reason))


def writer(root: Path, mirror: Path | None = None, **settings) -> LogWriter:
    """One that writes at once, unless told otherwise."""
    given = {
        "limit_bytes": 0,
        "queue_bytes": PLENTY,
        "on_state": States(),
        "max_age_s": 0.0,
        "identity": LogIdentity(RUN, WORKER),
    } | settings
    identity = given.pop("identity")
    name = identity.worker
    return LogWriter(root / name, mirror and mirror / name, identity, **given)


def values(step: int, microbatch: int = 0, numel: int = 50) -> Tensor:
    return torch.arange(numel, dtype=torch.float32) + 1000 * step + 100 * microbatch


def log(made: LogWriter, step: int, microbatch: int = 0, numel: int = 50) -> None:
    tensors = (values(step, microbatch, numel),)
    made.append(FrameKind.ACTIVATION, 0, step, 0, microbatch, tensors)


def write(root: Path, steps: range, mirror: Path | None = None, **settings) -> None:
    """A log with one activation a step."""
    made = writer(root, mirror, **settings)
    for step in steps:
        log(made, step)
    assert made.flush(LIMIT_S)
    made.close()


def reader(root: Path, mirror: Path | str = "", **settings) -> LogReader:
    return LogReader.open(root, mirror, RUN, **settings)


def has(found: LogReader, step: int) -> bool:
    return found.has(FrameKind.ACTIVATION, 0, step)


def read(found: LogReader, step: int) -> Tensor:
    (tensor,) = found.read(FrameKind.ACTIVATION, 0, step, 0, 0)
    return tensor


def segments(root: Path) -> list[Path]:
    return sorted((root / WORKER).glob("segment-*.log"))


def offsets(path: Path) -> list[int]:
    """Where the frames of a segment begin, and where the last one ends."""
    with opened(path) as fd:
        _, start = read_segment_header(fd)
        found = scan(fd, start)
    return [*(offset for offset, _ in found.frames), found.end]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


class Blocked:
    """Stands in for the disk: every write waits until it is let go."""

    def __init__(self, monkeypatch, then) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

        def write_all(fd: int, buffers) -> None:
            self.entered.set()
            assert self.let_go.wait(LIMIT_S)
            then(fd, buffers)

        monkeypatch.setattr("holdfast.storage.log.folder.write_all", write_all)
