"""A worker's words to the agent of its machine, which gathers those of all workers there.

An agent that has not answered to some heartbeats is not counted on: the worker speaks for itself
until it answers again. No clock is read: heartbeats are counted.
"""

import select
import socket
from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.gathering import gathered_beat, gathered_report
from holdfast.protocol.relay import relay_end

_MOST_UNANSWERED = 3  # heartbeats; the coordinator looks for a silent worker after five


class Relay:
    """``sock``: None: nobody gathers."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._connection: Connection | None = None if sock is None else relay_end(sock)
        self._num_unanswered = _MOST_UNANSWERED + 1  # it has to answer first
        self._told: list[messages.Renewals] = []

    @property
    def is_heard(self) -> bool:
        return self._connection is not None and self._num_unanswered <= _MOST_UNANSWERED

    def beat(self, beat: messages.Heartbeat) -> bool:
        """Whether the agent is counted on; it is told in any case, so that it can answer."""
        self._listen()
        self._num_unanswered += 1
        return self._send(gathered_beat(beat)) and self.is_heard

    def report(self, report: messages.StepReport, epoch: int, said: int) -> bool:
        """``said``: messages of its own before it. False: it is not on its way."""
        return self.is_heard and self._send(gathered_report(report, epoch, said))

    def take_told(self) -> list[messages.Renewals]:
        """What the coordinator has had it say, as of the last heartbeat."""
        told, self._told = self._told, []
        return told

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, gathered: messages.Gathered) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.send(gathered)
        except HoldfastError:
            self.close()
            return False
        return True

    def _listen(self) -> None:
        poll = select.poll()
        if self._connection is None:
            return
        poll.register(self._connection.fileno(), select.POLLIN)
        with suppress(HoldfastError):
            while poll.poll(0):
                for message in self._connection.read():
                    if isinstance(message, messages.PassedOn):
                        self._num_unanswered = 0
                    elif isinstance(message, messages.Renewals):
                        self._told.append(message)
            return
        self.close()
