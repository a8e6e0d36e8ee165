"""An agent's line to the coordinator: when it breaks, the workers stay, and another one is looked
for. No thread stays: it is asked again and again."""

import os
import selectors
import time
from contextlib import suppress
from dataclasses import replace

from holdfast.auth.handshake import AGENT
from holdfast.config import MOST_TIMEOUT_S
from holdfast.errors import HoldfastError, PeerLost
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    Message,
    StartWorkers,
    StillHere,
    WorkerExited,
    WorkerStarted,
)
from holdfast.protocol.spec import Access
from holdfast.protocol.successors import PAUSE_S, SILENCE_S, GivenUp, Successors

_LOOK_S = 1.0  # beside a coordinator that is there
_LAST_WORDS_S = 0.01  # they are here, or lost


class AgentLine:
    """``access``: how workers are to reach the coordinator."""

    def __init__(
        self, connection: Connection, access: Access, selector: selectors.BaseSelector
    ) -> None:
        self.connection: Connection | None = connection
        self.access = access
        self._selector = selector
        # Until there is something to be kept, a line that breaks is the end.
        self._successors = Successors(access, AGENT, "", "", 0.0, MOST_TIMEOUT_S)
        self._until_s = self._next_s = 0.0
        self._sign_s: float | None = None  # last one of a coordinator that gives some
        self._read_s = 0.0  # its last word
        self._last_words: list[Message] = []  # read after a send had failed
        self._unsaid: list[Message] = []  # of processes that have ended since it broke
        self._selector.register(connection, selectors.EVENT_READ)

    def follow(self, order: StartWorkers) -> None:
        """From now on there are workers to be kept."""
        workers = order.config.workers
        self._successors = replace(
            self._successors,
            run_dir=order.run_dir,
            limit_s=workers.orphan_limit_s,
            silence_limit_s=workers.silence_limit_s,
        )

    def read(self) -> list[Message]:
        if self.connection is None:
            return []
        try:
            heard = self.connection.read()
        except PeerLost as why:
            self._lose(why)
            return []
        self._read_s = time.monotonic()
        if any(isinstance(each, StillHere) for each in heard):
            self._sign_s = self._read_s
        return [each for each in heard if not isinstance(each, StillHere)]

    def send(self, message: Message) -> None:
        """PeerLost: nobody is there, and nobody is looked for."""
        if self.connection is not None:
            try:
                self.connection.send(message)
                return
            except PeerLost as why:
                self._lose(why)
        if isinstance(message, WorkerExited):  # a successor does not know who has started it
            self._unsaid += [WorkerStarted(worker=message.worker, pid=message.pid), message]

    def _lose(self, why: PeerLost) -> None:
        self._last_words += self._read_to_the_end()
        self.close()
        limit_s = self._successors.limit_s
        if not limit_s and not self._last_words:  # else it may have said that the run is over
            raise why
        self._until_s = time.monotonic() + limit_s

    def take_last_words(self) -> list[Message]:
        """Of a coordinator that is gone."""
        heard, self._last_words = self._last_words, []
        return heard

    def _read_to_the_end(self) -> list[Message]:
        """What it has said before it hung up, or was found to be gone."""
        found: list[Message] = []
        with suppress(HoldfastError):
            while self.connection is not None and (
                more := self.connection.read_within(_LAST_WORDS_S)
            ):
                found += more
        return found

    def look(self) -> bool:
        """Whether there is a new coordinator. PeerLost: there will be none."""
        now_s = time.monotonic()
        if now_s < self._next_s or (self.connection is not None and not self._is_silent(now_s)):
            return False
        self._next_s = now_s + (PAUSE_S if self.connection is None else _LOOK_S)
        if self.connection is None and now_s > self._until_s:
            raise PeerLost("nobody has taken over the run")
        try:
            is_alive = self.connection is not None
            talks = is_alive and now_s - self._read_s <= SILENCE_S
            found = self._successors.look(is_alive=is_alive, elsewhere=talks)
        except GivenUp as why:
            raise PeerLost(str(why)) from why
        if found is not None:
            self._follow(found, self._successors.access)
        return found is not None

    def _is_silent(self, now_s: float) -> bool:
        """It may be stopped, or not know whether it still leads, and another one may have its
        place; it is left only for that one."""
        return self._sign_s is not None and now_s - self._sign_s > SILENCE_S

    def _follow(self, found: Connection, there: Access) -> None:
        self.close()
        self.connection, self._sign_s = found, None
        self._selector.register(found, selectors.EVENT_READ)
        # Workers prove to each other that they are of one launch.
        self.access = replace(there, generation=self.access.generation)

    @property
    def pause_s(self) -> float:
        """Until it wants to look again."""
        return PAUSE_S if self.connection is None else PAUSE_S * 1000

    def take_unsaid(self) -> list[Message]:
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def let_go(self) -> None:
        """In a forked child. The descriptor only: a shutdown would end the agent's connection."""
        if self.connection is not None:
            os.close(self.connection.fileno())

    def stop_reading(self) -> None:
        """What is said is still sent."""
        if self.connection is not None:
            self._selector.unregister(self.connection)

    def close(self) -> None:
        if self.connection is not None:
            with suppress(KeyError):  # nobody reads it any more
                self._selector.unregister(self.connection)
            self.connection.close()
            self.connection = None
