"""What workers hear of who leads: signs of life, and what one that has come back is answered."""

from collections.abc import Iterable

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Send
from holdfast.protocol import messages

SIGN_S = 1.0  # whoever hears nothing for some times as long looks for another coordinator


class Signs:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._said_s = 0.0

    def due(self, workers: Iterable[WorkerId], now_s: float) -> list[Effect]:
        """What was reported of steps before has been put down in the events."""
        if now_s - self._said_s < SIGN_S or self._coordinator.starting:
            return []
        self._said_s = now_s
        sign = messages.StillHere(next_step=self._coordinator.parts.reports.next_step)
        return [Send(worker, sign) for worker in workers]

    def answer(
        self, told: messages.Reattach, *, is_new: bool
    ) -> messages.SayHello | messages.Begone | None:
        """None: it is taken back. ``is_new``: nobody has heard its hello."""
        regaining = self._coordinator.regaining
        if regaining.awaits(told):
            return None
        if is_new and regaining.is_starting(parse_worker(told.worker)):
            return messages.SayHello()
        return messages.Begone(reason="its place is gone")
