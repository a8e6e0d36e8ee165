"""What workers hear of who leads: signs of life, and what one that has come back is answered."""

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import CheckLead, Effect, Send, TellAgents
from holdfast.protocol import messages

SIGN_S = 1.0  # whoever hears nothing for some times as long looks for another coordinator
OWN_SIGNS = 10  # of so many one goes to each worker, also where agents pass on the others
NUM_LATE = 10  # signs: so long a standby may take to copy what it was told of steps


class Signs:
    """``leads``: whether this one does for sure. Workers look elsewhere while it is not."""

    def __init__(
        self, coordinator: Coordinator, leads: Callable[[float], bool] = lambda now_s: True
    ) -> None:
        self._coordinator, self._leads = coordinator, leads
        self._said_s, self._number = 0.0, 0
        self._reached: deque[int] = deque(maxlen=NUM_LATE)  # when the last signs were given

    def due(self, workers: Iterable[WorkerId], now_s: float) -> list[Effect]:
        """Of one that leads. What was reported of steps before has been put down in the events,
        and copied by whoever stands by."""
        if now_s - self._said_s < SIGN_S or self._coordinator.starting:
            return []
        self._said_s = now_s
        reached = self._coordinator.parts.reports.next_step
        self._reached.append(reached)
        # After all went back, steps are reported once more.
        sign = messages.StillHere(next_step=min(self._reached[0], reached), heard=reached)
        leases, leads = self._coordinator.parts.leases, self._leads(now_s)
        leases.note_sign(sign.next_step, leads=leads)
        if not leads:
            return [CheckLead()]
        others = leases.by_agents if self._number % OWN_SIGNS else ()
        self._number += 1
        told = (Send(worker, sign) for worker in workers if worker not in others)
        return [CheckLead(), TellAgents(sign), *told]

    @property
    def awaited(self) -> bool:
        """Somebody who may not know that the run is finished."""
        return self._coordinator.regaining.is_expecting

    def answer(
        self, told: messages.Reattach, *, is_new: bool
    ) -> messages.SayHello | messages.Begone | messages.Stop | None:
        """None: it is taken back. ``is_new``: nobody has heard its hello."""
        regaining = self._coordinator.regaining
        if self._coordinator.over:
            return regaining.tell_end(parse_worker(told.worker))
        if regaining.awaits(told):
            return None
        # One that was given work before is of an earlier life: it would go on with that.
        was_given_work = told.epoch > 0 or told.building > 0
        if is_new and not was_given_work and regaining.is_starting(parse_worker(told.worker)):
            return messages.SayHello()
        return messages.Begone(reason="its place is gone")
