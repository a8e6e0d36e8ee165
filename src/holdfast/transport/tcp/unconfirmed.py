"""What one sender has sent and its receiver has not confirmed: kept, to be sent again.

Holds references: the tensors are nobody's to change. Pure; its owner has the lock.
"""

from collections import deque
from typing import Generic, TypeVar

from holdfast.errors import ProtocolError

_Message = TypeVar("_Message")


class Unconfirmed(Generic[_Message]):
    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()  # the oldest first
        self.num_sent = self.num_confirmed = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: _Message) -> int:
        """Returns its number, from 1 on."""
        self._messages.append(message)
        self.num_sent += 1
        return self.num_sent

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

    def all(self) -> list[_Message]:
        return list(self._messages)

    def clear(self) -> None:
        """Nobody will confirm them."""
        self._messages.clear()
        self.num_confirmed = self.num_sent
