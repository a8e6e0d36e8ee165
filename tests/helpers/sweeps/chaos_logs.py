"""What may happen to the logs of a run between the death of a worker and the replay of its stage.

Only for workers that are threads: the moment of a kill is known there.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.faults.fault import Fault, FaultKind
from holdfast.faults.injection import ThreadActions
from holdfast.storage.log.reader import LogReader

Harm = Callable[[Path], object]
"""what is done to the folder of logs, ``RUN_DIR/log``"""


def after_kills(patch: pytest.MonkeyPatch, log_dir: Callable[[], Path], harm: Harm) -> None:
    """Do it when somebody is dead and all others have written what they had: before the replay."""
    act, open_reader, lock = ThreadActions.act, LogReader.open, threading.Lock()
    due: list[Harm] = []

    def act_and_arm(actions, fault: Fault, step: int, point: str, done: int) -> None:
        if fault.kind is FaultKind.KILL:
            due.append(harm)
        act(actions, fault, step, point, done)

    def harm_and_open(*where) -> LogReader:
        with lock:
            while due:
                due.pop()(log_dir())
        return open_reader(*where)

    patch.setattr(ThreadActions, "act", act_and_arm)
    patch.setattr(LogReader, "open", staticmethod(harm_and_open))


def gone(*workers: str) -> Harm:
    """The folders of these workers are deleted, as if on a disk that died with them."""

    def harm(log_dir: Path) -> None:
        for worker in workers:
            shutil.rmtree(log_dir / worker, ignore_errors=True)

    return harm


def cut_short(worker: str) -> Harm:
    """Each segment keeps a tenth: were it the last step alone, all could go back by one."""

    def harm(log_dir: Path) -> None:
        for path in segments(log_dir / worker):
            os.truncate(path, path.stat().st_size // 10)

    return harm


def flipped(worker: str) -> Harm:
    """A bit of every 64th byte is another one: no frame of a tensor stays whole."""

    def harm(log_dir: Path) -> None:
        for path in segments(log_dir / worker):
            data = bytearray(path.read_bytes())
            for place in range(128, len(data), 64):
                data[place] ^= 1
            path.write_bytes(data)

    return harm


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.log"))
