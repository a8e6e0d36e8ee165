"""Connections of workers: whose each is, and how much was heard on it."""

from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.protocol.connection import Connection


class WorkerConnections:
    """Each worker has one: while it loads, and then from its hello on."""

    def __init__(self) -> None:
        self._loading: dict[WorkerId, Connection] = {}  # have not said hello yet
        self._here: dict[WorkerId, Connection] = {}
        self._names: dict[Connection, WorkerId] = {}  # of both
        self._num_heard: dict[Connection, int] = {}

    @property
    def loading(self) -> Mapping[WorkerId, Connection]:
        return self._loading

    @property
    def here(self) -> Mapping[WorkerId, Connection]:
        return self._here

    def loads(self, worker: WorkerId, connection: Connection) -> None:
        self._loading[worker] = connection
        self._names[connection] = worker

    def came(self, worker: WorkerId, connection: Connection) -> None:
        """It has said hello, or has come back."""
        self._loading.pop(worker, None)
        self._here[worker] = connection
        self._names[connection] = worker

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._names

    def is_here(self, connection: Connection) -> bool:
        worker = self._names.get(connection)
        return worker is not None and self._here.get(worker) is connection

    def of(self, worker: WorkerId) -> Connection | None:
        return self._here.get(worker) or self._loading.get(worker)

    def heard(self, connection: Connection) -> None:
        """One more message."""
        if connection in self._names:
            self._num_heard[connection] = self.num_heard(connection) + 1

    def num_heard(self, connection: Connection) -> int:
        return self._num_heard.get(connection, 0)

    def drop(self, connection: Connection) -> None:
        self._num_heard.pop(connection, None)
        worker = self._names.pop(connection, None)
        if worker is None:
            return
        for known in (self._loading, self._here):
            if known.get(worker) is connection:
                del known[worker]
