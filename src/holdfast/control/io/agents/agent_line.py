"""An agent's line to the coordinator: when it breaks, the workers stay, and another one is looked
for. No thread: it is asked again and again."""

import selectors
import time
from contextlib import suppress
from dataclasses import replace

from holdfast.auth.handshake import AGENT
from holdfast.errors import HoldfastError, PeerLost
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import Message, StartWorkers, WorkerExited, WorkerStarted
from holdfast.protocol.spec import Access
from holdfast.protocol.successors import PAUSE_S, GivenUp, Successors

_LAST_WORDS_S = 0.01  # they are here, or lost


class AgentLine:
    """``access``: how workers are to reach the coordinator."""

    def __init__(
        self, connection: Connection, access: Access, selector: selectors.BaseSelector
    ) -> None:
        self.connection: Connection | None = connection
        self.access = access
        self._selector = selector
        self._successors: Successors | None = None
        self._until_s = self._next_s = 0.0
        self._last_words: list[Message] = []  # read after a send had failed
        self._unsaid: list[Message] = []  # of processes that have ended since it broke
        self._selector.register(connection, selectors.EVENT_READ)

    def follow(self, order: StartWorkers) -> None:
        """From now on there are workers to be kept."""
        workers = order.config.workers
        self._successors = self._successors or Successors(
            self.access, AGENT, "", order.run_dir, workers.orphan_limit_s, workers.silence_limit_s
        )

    def read(self) -> list[Message]:
        if self.connection is None:
            return []
        try:
            return self.connection.read()
        except PeerLost as why:
            self._lose(why)
            return []

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
        limit_s = 0.0 if self._successors is None else self._successors.limit_s
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
        if self.connection is not None or now_s < self._next_s:
            return False
        if self._successors is None:
            raise PeerLost("the coordinator is gone")
        self._next_s = now_s + PAUSE_S
        if now_s > self._until_s:
            raise PeerLost("nobody has taken over the run")
        try:
            self.connection = self._successors.look()
        except GivenUp as why:
            raise PeerLost(str(why)) from why
        if self.connection is None:
            return False
        self._selector.register(self.connection, selectors.EVENT_READ)
        there = self._successors.access
        # Workers prove to each other that they are of one launch.
        self.access = replace(there, generation=self.access.generation)
        return True

    @property
    def pause_s(self) -> float:
        """Until it wants to look again."""
        return PAUSE_S if self.connection is None else PAUSE_S * 1000

    def take_unsaid(self) -> list[Message]:
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

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
