"""What the workers of a machine tell their agent: gathered, and passed on in one message.

A worker that falls silent has nothing here to be passed on: the coordinator misses it as ever.
"""

import os
import selectors
import socket
from dataclasses import replace

from holdfast.errors import HoldfastError
from holdfast.protocol.connection import Connection
from holdfast.protocol.gathering import check_numbers, speakers, together
from holdfast.protocol.messages import (
    Gathered,
    Message,
    PassedOn,
    Renewals,
)
from holdfast.protocol.relay import relay_end, relay_pair
from holdfast.protocol.thinning import DETAILS_S, Thinning

_MANY_PARTS = 64  # of one worker that wait to be passed on
_MOST_PARTS = 256  # likewise: more come from nobody who means well


class Gatherer:
    """Of an agent: one line to each worker. Whatever is wrong with one ends that line alone."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._lines: dict[str, Connection] = {}  # by worker
        self._parts: dict[str, list[Gathered]] = {}  # likewise: not passed on yet
        self._thinning = Thinning()

    def open(self, worker: str) -> socket.socket:
        """The worker's end. A line of an earlier process under this name is over."""
        self.close(worker)
        ours, theirs = relay_pair()
        line = relay_end(ours)
        try:
            self._selector.register(line, selectors.EVENT_READ, worker)
        except OSError:
            line.close()
            theirs.close()
            raise
        self._lines[worker] = line
        return theirs

    def close(self, worker: str) -> None:
        self._parts.pop(worker, None)
        self._thinning.forget(worker)
        line = self._lines.pop(worker, None)
        if line is not None:
            self._selector.unregister(line)
            line.close()

    def end(self) -> None:
        for worker in list(self._lines):
            self.close(worker)

    def leave(self) -> None:
        """In a process that was forked: the descriptors only, as the lines are the agent's."""
        for line in self._lines.values():
            os.close(line.fileno())

    def hear(self, worker: str) -> None:
        """It may be closed since it was seen that there is something."""
        line = self._lines.get(worker)
        try:
            for message in line.read() if line is not None else ():
                self._take(worker, message)
        except HoldfastError:
            self.close(worker)

    def _take(self, worker: str, message: Message) -> None:
        """HoldfastError: it says what it may not say."""
        parts = self._parts.setdefault(worker, [])
        if not isinstance(message, Gathered) or speakers(message) != {worker}:
            raise HoldfastError(f"worker {worker} speaks of others")
        check_numbers(message)
        if len(parts) >= _MOST_PARTS:
            raise HoldfastError(f"worker {worker} says too much")
        parts.append(message)

    @property
    def is_full(self) -> bool:
        """So much of one worker that it is better passed on before its time."""
        return any(len(parts) >= _MANY_PARTS for parts in self._parts.values())

    def take(self, beat_s: float = DETAILS_S) -> Gathered | None:
        """All that is to be passed on, as is done every so often."""
        parts = [part for of_one in self._parts.values() for part in of_one]
        return self._thinning.thinned(together(parts), beat_s) if parts else None

    def begin_anew(self) -> None:
        """There is another coordinator."""
        self._thinning.begin_anew()

    def passed_on(self, *, is_heard: bool) -> None:
        """``is_heard``: else nobody is there, and workers have to find out by themselves."""
        workers, self._parts = [one for one, parts in self._parts.items() if parts], {}
        for worker in workers if is_heard else ():
            self._tell(worker, PassedOn())

    def renew(self, renewals: Renewals) -> None:
        """Nothing is kept: a worker that hears of it late counts from when it has spoken."""
        for worker, answers in renewals.answers.items():
            self._tell(worker, replace(renewals, answers={worker: answers}))

    def _tell(self, worker: str, message: Message) -> None:
        try:
            if worker in self._lines:
                self._lines[worker].send(message)
        except HoldfastError:
            self.close(worker)
