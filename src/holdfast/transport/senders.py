"""Who may deliver to one mailbox: under which name, on which connection, and who is gone.

Pure; its owner has the lock. Knows nothing of what is delivered.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, ProtocolError


@dataclass(slots=True)
class _Sender:
    """Who may deliver under one name; nobody, if ``connection`` is None: it was dropped.

    Whoever comes back must be in ``epoch`` or a later one.
    """

    connection: object
    epoch: int
    session: int
    num_received: int = 0

    def counts(self, sequence: int) -> bool:
        """Whether the message with this number is new; they come in order."""
        if sequence > self.num_received + 1:
            raise ProtocolError(f"message {sequence} came after message {self.num_received}")
        is_new = sequence > self.num_received
        self.num_received = max(self.num_received, sequence)
        return is_new


class Senders:
    def __init__(self, reconnect_limit_s: float) -> None:
        self._reconnect_limit_s = reconnect_limit_s
        self._known: dict[WorkerId, _Sender] = {}
        self._lost: dict[WorkerId, str] = {}
        self._away: dict[WorkerId, tuple[float, str]] = {}  # lost at this time, unless it is back

    def welcome(
        self, name: WorkerId, epoch: int, connection: object, session: int, *, resumes: bool
    ) -> tuple[int, object, bool]:
        """How many messages of the session have come, the connection that ``name`` had before (or
        None), and whether that was of another session."""
        sender = self._known.get(name) or _Sender(None, 0, 0)
        if epoch < sender.epoch:
            raise EpochPast(
                f"worker {name} called with epoch {epoch}, but it was dropped or a later "
                f"one of that name called in epoch {sender.epoch}"
            )
        is_same = sender.connection is not None and sender.session == session
        if resumes and not is_same:
            raise ProtocolError(f"worker {name} goes on with a session that is over")
        num_received = sender.num_received if is_same else 0
        self._known[name] = _Sender(connection, epoch, session, num_received)
        self.expect(name)
        return num_received, sender.connection, not is_same

    def is_new(self, name: WorkerId, connection: object, sequence: int | None) -> bool:
        """Whether a message that ``name`` delivers on ``connection`` has not come before."""
        sender = self._known.get(name)
        if sender is None or sender.connection is not connection:
            raise ProtocolError(f"another connection now speaks for worker {name}")
        return sequence is None or sender.counts(sequence)

    def drop(
        self, is_gone: Callable[[WorkerId, int], bool], epoch: int
    ) -> dict[WorkerId, object | None]:
        """All of which ``is_gone`` (name, epoch of its hello), with their connections.

        Whoever comes back under such a name must be in ``epoch`` or a later one.
        """
        known = {name: _Sender(None, 0, 0) for name in self._lost} | self._known
        gone = {name: sender for name, sender in known.items() if is_gone(name, sender.epoch)}
        for name, sender in gone.items():
            self._known[name] = _Sender(None, max(sender.epoch, epoch), 0)
            self.expect(name)
        return {name: sender.connection for name, sender in gone.items()}

    def lose(self, name: WorkerId, connection: object, reason: str, *, may_return: bool) -> bool:
        """False: another connection has taken over."""
        known = self._known.get(name)
        if known is not None and known.connection is not connection:
            return False
        if may_return:
            self._away[name] = (monotonic() + self._reconnect_limit_s, reason)
        else:
            self._lost[name] = reason
        return True

    def expect(self, name: WorkerId) -> None:
        """It is alive, or said to be."""
        self._lost.pop(name, None)
        self._away.pop(name, None)

    @property
    def are_all_here(self) -> bool:
        return not (self._lost or self._away)

    def why_lost(self, name: WorkerId) -> str | None:
        if name in self._lost:
            return self._lost[name]
        until_s, reason = self._away.get(name, (math.inf, ""))
        if monotonic() < until_s:
            return None
        return f"{reason}, and was not back in {self._reconnect_limit_s:g} s"

    def return_s(self, names: Iterable[WorkerId]) -> float:
        """How long it may be until the first one that is away counts as lost."""
        if not self._away:
            return math.inf
        until_s = [self._away[name][0] for name in names if name in self._away]
        return max(0.0, min(until_s, default=math.inf) - monotonic())
