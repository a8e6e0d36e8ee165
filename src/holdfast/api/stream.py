"""Events on their way from the thread that trains to the one that looks at them."""

import threading
from collections import deque
from collections.abc import Iterator

from holdfast.observability.events import CheckpointSaved, Event, WorkerStep

_MOST_WAITING = 1000  # before times of operations, the bulk of all events, are left out


class EventStream:
    """One thread puts events in and is never held up; another one takes each of them once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._is_closed = False
        self._num_unheard = 0  # checkpoints

    def put(self, event: Event) -> None:
        with self._changed:
            if len(self._waiting) < _MOST_WAITING or not isinstance(event, WorkerStep):
                self._waiting.append(event)
                self._num_unheard += isinstance(event, CheckpointSaved)
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def unheard_checkpoints(self) -> int:
        """Whoever takes the events has not heard of so many, or is busy with them."""
        with self._changed:
            return self._num_unheard

    def __iter__(self) -> Iterator[Event]:
        """Until the stream is closed and empty."""
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                event = self._waiting.popleft()
            yield event
            with self._changed:
                self._num_unheard -= isinstance(event, CheckpointSaved)
