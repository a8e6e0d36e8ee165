"""Workers on other machines may commit for a while after they were heard: told again and again.

A lease is shorter than the silence after which a worker is lost, so whoever is left out has
stopped by itself. One message for all who have answered the one before: it is encoded once.
"""

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Send
from holdfast.control.state.run import Run
from holdfast.protocol import messages

_TIMES = 3  # that a lease is renewed in its own time: one that is late harms nobody


class Leases:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_needed = run.config.machines.count > 0
        self._number, self._due_s = 0, 0.0
        self._heard: dict[WorkerId, int] = {}  # renewals that workers have told of

    def heard(self, worker: WorkerId, beat: messages.Heartbeat) -> None:
        if self._is_needed:
            self._heard[worker] = beat.renewed

    def tick(self, at_s: float) -> list[Effect]:
        """To whoever beats."""
        if not self._is_needed or at_s < self._due_s:
            return []
        lease_s = self._run.timeouts.lease_s
        self._due_s = at_s + lease_s / _TIMES
        self._number += 1
        live = set(self._run.membership.live)
        self._heard = {worker: number for worker, number in self._heard.items() if worker in live}
        same: dict[int, messages.Renewal] = {}
        for answers in set(self._heard.values()):
            same[answers] = messages.Renewal(number=self._number, answers=answers, for_s=lease_s)
        # Those who answer alike come one after the other.
        order = sorted(self._heard.items(), key=lambda item: (item[1], item[0]))
        return [Send(worker, same[answers]) for worker, answers in order]
