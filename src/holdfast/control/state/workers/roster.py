"""What workers have said of themselves in their hellos: where they are, what they load."""

from collections.abc import Mapping, Sequence

from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.protocol.records import Address


class Roster:
    def __init__(self) -> None:
        self._hellos: dict[WorkerId, messages.Hello] = {}
        self._hosts: dict[str, None] = {}

    @property
    def hellos(self) -> Mapping[WorkerId, messages.Hello]:
        """The newest of each."""
        return self._hellos

    @property
    def first(self) -> WorkerId:
        return min(self._hellos)

    @property
    def traits(self) -> Mapping[str, str]:
        """Of the job: those of all are the same."""
        return self._hellos[self.first].traits

    @property
    def is_weighted(self) -> bool:
        """Whether micro-batches count for what the job says: nobody steps on trust then."""
        return messages.WEIGHT in self.traits

    @property
    def hosts(self) -> Sequence[str]:
        """Of all who have ever come."""
        return tuple(self._hosts)

    def enroll(self, worker: WorkerId, hello: messages.Hello) -> None:
        self._hellos[worker] = hello
        self._hosts[hello.host] = None

    def address(self, worker: WorkerId) -> Address:
        hello = self._hellos[worker]
        return Address(hello.host, hello.port)
