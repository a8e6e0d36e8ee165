"""What workers have said of themselves in their hellos: where they are, what they load."""

from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.protocol.records import Address


class Roster:
    def __init__(self) -> None:
        self._hellos: dict[WorkerId, messages.Hello] = {}

    @property
    def hellos(self) -> Mapping[WorkerId, messages.Hello]:
        """The newest of each."""
        return self._hellos

    @property
    def first(self) -> WorkerId:
        return min(self._hellos)

    def enroll(self, worker: WorkerId, hello: messages.Hello) -> None:
        self._hellos[worker] = hello

    def address(self, worker: WorkerId) -> Address:
        hello = self._hellos[worker]
        return Address(hello.host, hello.port)
