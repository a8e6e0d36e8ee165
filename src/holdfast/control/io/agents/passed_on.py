"""What agents pass on of their workers: heard as if each had said it, and in its order.

An agent speaks for those that it has started, and for nobody else. A worker that has said
something else by itself before a report is heard with that first. A connection that breaks ends
what is waited for: what came before it is a whole beginning of what the worker has said.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.entry.worker_connections import WorkerConnections
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.gathering import (
    Beat,
    Word,
    beats_of,
    check_numbers,
    heartbeat_of,
    reports_of,
)

_MOST_WAITING = 256  # reports of one worker


@dataclass(frozen=True)
class Hear:
    """``beats``: of a machine at once, who else has beaten, and when; those that come back are
    heard one by one."""

    one: Callable[[Connection, messages.Message], None]  # of a worker, and its connection
    beats: Callable[[Sequence[Beat], Sequence[WorkerId], float], tuple[list[Effect], list[Beat]]]
    apply: Callable[[Sequence[Effect]], None]


class PassedOnWords:
    """``is_past``: an epoch of which no report counts any more."""

    def __init__(
        self,
        agents: Agents,
        workers: WorkerConnections,
        hear: Hear,
        is_past: Callable[[int], bool],
    ) -> None:
        self._agents, self._workers = agents, workers
        self._hear, self._is_past = hear, is_past
        self._waiting: dict[Connection, deque[Word]] = {}

    def take(self, agent: Connection, gathered: messages.Gathered) -> None:
        """ProtocolError: it makes no sense."""
        check_numbers(gathered)
        started, here = self._agents.workers_of(agent), self._workers.here
        # One that has ended or moved, or that has not come back yet, tells again what counts.
        beats = [
            beat
            for beat in beats_of(gathered)
            if beat.row.worker in started and parse_worker(beat.row.worker) in here
        ]
        alive = [parse_worker(row.worker) for row in gathered.alive if row.worker in started]
        if beats or alive:
            self._hear_beats(beats, [worker for worker in alive if worker in here])
        for word in reports_of(gathered) if gathered.reports else ():
            connection = here.get(parse_worker(word.message.worker))
            if connection is not None and word.message.worker in started:
                self._take(connection, word)

    def _hear_beats(self, beats: Sequence[Beat], alive: Sequence[WorkerId]) -> None:
        effects, rest = self._hear.beats(beats, alive, time.monotonic())
        self._hear.apply(effects)
        for beat in rest:
            connection = self._workers.here.get(parse_worker(beat.row.worker))
            if connection is not None:  # else one before it has had it dropped
                self._hear.one(connection, heartbeat_of(beat))

    def _take(self, connection: Connection, word: Word) -> None:
        waiting = self._waiting.get(connection)
        is_early = word.said > self._workers.num_heard(connection)
        if waiting or is_early:
            waiting = self._waiting.setdefault(connection, deque(maxlen=_MOST_WAITING))
            waiting.append(word)
        else:
            self._tell(connection, word)

    def _tell(self, connection: Connection, word: Word) -> None:
        if not self._is_past(word.epoch):
            self._hear.one(connection, word.message)

    def heard(self, connection: Connection) -> None:
        """One more message of its own: some reports may have waited for it."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            return
        while waiting and waiting[0].said <= self._workers.num_heard(connection):
            self._tell(connection, waiting.popleft())
        if not waiting:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
