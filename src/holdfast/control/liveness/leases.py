"""Workers on other machines may commit for a while after they were heard: told again and again.

A lease is shorter than the silence after which a worker is lost, so whoever is left out has
stopped by itself. One message for all who have answered the one before: it is encoded once. Those
whose heartbeats an agent passes on are told by that agent, in one message for a machine.
"""

from collections.abc import Set

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Send, TellAgents
from holdfast.control.progress.reports import Reports
from holdfast.control.state.run import Run
from holdfast.protocol import messages

_TIMES = 3  # that a lease is renewed in its own time: one that is late harms nobody
_EPOCH_BITS = 28  # of a number: as many renewals of one epoch take decades
_MOST_S = 2.0  # between two: whoever is told by its agent knows by them that somebody leads


class Leases:
    def __init__(self, run: Run, reports: Reports) -> None:
        self._run, self._reports = run, reports
        self._is_needed = run.config.machines.count > 0
        self._number, self._due_s = 0, 0.0
        # Renewals that workers have told of, and whether an agent has passed it on.
        self._heard: dict[WorkerId, tuple[int, bool]] = {}
        self._by_agents: set[WorkerId] = set()
        self._next_step, self._leads = 0, True

    @property
    def by_agents(self) -> Set[WorkerId]:
        """Those who were last told by their agents, and so of ``next_step`` as well."""
        return self._by_agents

    def note_sign(self, next_step: int, *, leads: bool) -> None:
        """As workers are told of it by signs of life. ``leads``: whether that is sure."""
        self._next_step, self._leads = next_step, leads

    def heard(self, worker: WorkerId, renewed: int, *, by_agent: bool) -> None:
        """``renewed``: as its heartbeat tells."""
        if self._is_needed:
            self._heard[worker] = (renewed, by_agent)

    def tick(self, at_s: float) -> list[Effect]:
        """To whoever beats."""
        if not self._is_needed or at_s < self._due_s:
            return []
        lease_s = self._run.timeouts.lease_s
        self._due_s = at_s + min(lease_s / _TIMES, _MOST_S)
        # A successor has other epochs: what comes late of others answers none of its numbers.
        self._number = max(self._number + 1, self._run.epoch << _EPOCH_BITS)
        live = set(self._run.membership.live)
        self._heard = {worker: told for worker, told in self._heard.items() if worker in live}
        # The first goes to the worker alone: another process may have had its name.
        self._by_agents = {
            worker
            for worker, (answers, by_agent) in self._heard.items()
            if by_agent and answers and self._run.machines.of(worker)
        }
        return [*self._to_machines(lease_s), *self._to_workers(lease_s)]

    def _to_machines(self, lease_s: float) -> list[Effect]:
        answers: dict[str, dict[str, int]] = {}
        for worker in sorted(self._by_agents):
            of_machine = answers.setdefault(self._run.machines.of(worker), {})
            of_machine[str(worker)] = self._heard[worker][0]
        # After all went back, steps are reported once more.
        heard = self._reports.next_step
        next_step = min(self._next_step, heard)
        return [
            TellAgents(
                messages.Renewals(
                    number=self._number,
                    for_s=lease_s,
                    epoch=self._run.epoch,
                    next_step=next_step,
                    heard=heard,
                    leads=self._leads,
                    answers=told,
                ),
                machine,
            )
            for machine, told in answers.items()
        ]

    def _to_workers(self, lease_s: float) -> list[Effect]:
        alone = {w: told[0] for w, told in self._heard.items() if w not in self._by_agents}
        same: dict[int, messages.Renewal] = {}
        for answers in set(alone.values()):
            same[answers] = messages.Renewal(number=self._number, answers=answers, for_s=lease_s)
        # Those who answer alike come one after the other.
        order = sorted(alone.items(), key=lambda item: (item[1], item[0]))
        return [Send(worker, same[answers]) for worker, answers in order]
