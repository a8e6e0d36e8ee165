"""What may happen to the logs of a run between the death of a worker and the replay of its stage.

Only for workers that are threads: the moment of a kill is known there.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.faults.fault import Fault, FaultKind
from holdfast.runtime.injection import ThreadActions

Harm = Callable[[Path], object]
"""what is done to the folder of logs, ``RUN_DIR/log``"""


def after_kills(patch: pytest.MonkeyPatch, log_dir: Callable[[], Path], harm: Harm) -> None:
    """Do it when a worker is dead and before anybody may have noticed."""
    act = ThreadActions.act

    def act_then_harm(actions, fault: Fault, step: int, point: str, done: int) -> None:
        die = actions._die

        def die_then_harm() -> None:
            harm(log_dir())
            die()

        actions._die = die_then_harm if fault.kind is FaultKind.KILL else die
        act(actions, fault, step, point, done)

    patch.setattr(ThreadActions, "act", act_then_harm)


def gone(*workers: str) -> Harm:
    """The folders of these workers are deleted, as if on a disk that died with them."""

    def harm(log_dir: Path) -> None:
        for worker in workers:
            shutil.rmtree(log_dir / worker, ignore_errors=True)

    return harm


def cut_short(worker: str) -> Harm:
    """Each segment loses its second half."""

    def harm(log_dir: Path) -> None:
        for path in segments(log_dir / worker):
            os.truncate(path, path.stat().st_size // 2)

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
