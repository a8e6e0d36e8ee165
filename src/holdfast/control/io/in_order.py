"""Effects one after the other; what one leads to comes after those that were there before it."""

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.control.effects import Effect


class InOrder:
    def __init__(self, do: Callable[[Effect], None]) -> None:
        self._do = do
        self._todo: deque[Effect] = deque()
        self._is_applying = self._is_stopped = False

    def stop(self) -> None:
        """Nothing that is still to be done is done."""
        self._is_stopped = True
        self._todo.clear()

    def apply(self, effects: Iterable[Effect]) -> None:
        if self._is_stopped:
            return
        self._todo.extend(effects)
        if self._is_applying:
            return
        self._is_applying = True
        try:
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._is_applying = False
