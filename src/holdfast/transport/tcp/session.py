"""One sender's numbering of its messages to one receiver, and those that are not confirmed yet.

They are kept, to be sent again. Holds references: the tensors are nobody's to change. Pure; its
owner has the lock.
"""

import secrets
from collections import deque
from collections.abc import Iterable

from holdfast.auth.stamps import Stamps
from holdfast.errors import ProtocolError
from holdfast.transport.tcp.departing import Departing
from holdfast.transport.tcp.greeting import ANSWER_BYTES, SessionHello, decode_answer


class Session:
    def __init__(self, epoch: int, messages: Iterable[Departing] = ()) -> None:
        """Begun in ``epoch``, with ``messages`` to be sent first."""
        self.was_answered = False
        self._number, self._epoch = secrets.randbits(64), epoch
        self._messages = deque(messages)  # the oldest first
        self.num_sent, self.num_confirmed = len(self._messages), 0
        self._answers = bytearray()

    def __len__(self) -> int:
        """How many are not confirmed."""
        return len(self._messages)

    def hello(self, epoch: int) -> SessionHello:
        return SessionHello(self._number, epoch, self.was_answered)

    def add(self, message: Departing) -> int:
        """Returns its number, from 1 on."""
        self._messages.append(message)
        self.num_sent += 1
        return self.num_sent

    def resumed(self, num_received: int, stamps: Stamps) -> list[Departing]:
        """On a new connection, whose other end has so many: what has not come, to be sent."""
        self.confirm(num_received)
        self._answers.clear()
        self.was_answered = True
        for sequence, message in enumerate(self._messages, num_received + 1):
            message.begin(sequence, stamps)
        return list(self._messages)

    def heard(self, data: bytes, stamps: Stamps) -> list[int]:
        """Counts, or GOODBYE, that are whole with ``data``, the next bytes of the receiver."""
        self._answers += data
        counts = []
        while len(self._answers) >= ANSWER_BYTES:
            counts.append(decode_answer(stamps.opened_unnumbered(self._answers[:ANSWER_BYTES])))
            del self._answers[:ANSWER_BYTES]
        return counts

    def confirm(self, num_received: int) -> bool:
        """So many have come, since the session began. Whether that is news."""
        if not self.num_confirmed <= num_received <= self.num_sent:
            raise ProtocolError(
                f"{num_received} messages confirmed: expected {self.num_confirmed} to "
                f"{self.num_sent}"
            )
        is_news = num_received > self.num_confirmed
        for _ in range(num_received - self.num_confirmed):
            self._messages.popleft()
        self.num_confirmed = num_received
        return is_news

    def clear(self) -> None:
        """Nobody will confirm them."""
        self._messages.clear()
        self.num_confirmed = self.num_sent

    def another(self, epoch: int, waiting: Iterable[Departing]) -> "Session | None":
        """In place of this one, which its receiver has dropped; None: that was meant for us.

        A receiver drops all sessions when it is given another stage, and may be a member again
        in the next epoch: its goodbye may come later than the word that it is one. What was sent
        to it in that epoch is then sent again. A copy of a state is not: its beginning is lost.
        """
        has_copy = any(one.epoch is None for one in (*self._messages, *waiting) if not one.is_note)
        if self._epoch >= epoch or has_copy:
            return None
        return Session(epoch, (one for one in self._messages if one.is_needed_in(epoch)))
