"""Seals, and what came of them: at once, or in a thread if the storage is far away."""

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.control.effects import SealCheckpoint, SealFailed


class SealDone(NamedTuple):
    effect: SealCheckpoint
    place: str  # where the checkpoint is


Seal = Callable[[SealCheckpoint], str]  # returns where it is; SealFailed: it is no checkpoint


class Seals:
    def __init__(self, limit_s: float, *, at_once: bool) -> None:
        self._limit_s, self._at_once = limit_s, at_once
        self._done: queue.SimpleQueue[tuple[int, SealDone | SealFailed]] = queue.SimpleQueue()
        self._number = 0
        self._current: tuple[int, SealCheckpoint, float] | None = None  # and until when

    def begin(self, effect: SealCheckpoint, seal: Seal) -> None:
        self._number += 1
        number = self._number
        self._current = number, effect, time.monotonic() + self._limit_s
        if self._at_once:
            self._run(number, effect, seal)
            return
        given = number, effect, seal
        thread = threading.Thread(target=self._run, args=given, name="seal", daemon=True)
        try:
            thread.start()
        except RuntimeError as why:  # no thread to be had
            self._done.put((number, SealFailed(effect, str(why))))

    def _run(self, number: int, effect: SealCheckpoint, seal: Seal) -> None:
        try:
            self._done.put((number, SealDone(effect, seal(effect))))
        except SealFailed as why:
            self._done.put((number, why))
        except Exception as why:  # a mistake of ours costs this checkpoint, not the run
            self._done.put((number, SealFailed(effect, repr(why))))

    def take(self) -> list[SealDone | SealFailed]:
        """What has come of them since. Of one that was given up nothing more is told."""
        told: list[SealDone | SealFailed] = []
        while not self._done.empty():
            number, done = self._done.get()
            if self._current is not None and self._current[0] == number:
                self._current = None
                told.append(done)
        if self._current is not None and time.monotonic() > self._current[2]:
            told.append(SealFailed(self._current[1], f"no answer within {self._limit_s:g} s"))
            self._current = None
        return told
