"""What the coordinator has said to those who stand still in a validation. Decides nothing."""

import threading

from holdfast.protocol import messages

LOOK_S = 0.05


class Orders:
    """Put from the control thread; of an epoch that is over they are of no account."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: messages.SaveHere | messages.GoOn | None = None

    def put(self, order: messages.SaveHere | messages.GoOn) -> None:
        with self._changed:
            self._newest = order
            self._changed.notify_all()

    def wait(self, epoch: int, version: int) -> messages.SaveHere | messages.GoOn | None:
        """For this validation; None: nothing yet."""
        with self._changed:
            if not self._is_for(epoch, version):
                self._changed.wait(LOOK_S)
            return self._newest if self._is_for(epoch, version) else None

    def _is_for(self, epoch: int, version: int) -> bool:
        newest = self._newest
        return newest is not None and (newest.epoch, newest.step) == (epoch, version)
