"""Who is silent, stuck, late or does not stop when told: looked for now and then.

What a worker says of others, and what its agent says of its end, is heard elsewhere.
"""

import math
from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.control.effects import AskStack, Effect, LookAtWorker, ReportStuck
from holdfast.control.join.joining import Joining
from holdfast.control.liveness.losing import Losing
from holdfast.control.liveness.lost_machines import LostMachines
from holdfast.control.liveness.silence import Silence
from holdfast.control.liveness.stuck import StuckDetector, stuck_event, stuck_words
from holdfast.control.reconfigure.reconfiguring import Reconfigurations
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m


class FailureDetector:
    def __init__(
        self,
        run: Run,
        joining: Joining,
        reconfigurations: Reconfigurations,
        stuck_detector: StuckDetector,
        losing: Losing,
        lost_machines: LostMachines,
    ) -> None:
        self._run, self._joining, self._reconfigurations = run, joining, reconfigurations
        self._stuck_detector, self._losing = stuck_detector, losing
        self._lost_machines = lost_machines
        self._silence = Silence()
        self._beats: set[WorkerId] = set()  # those that have begun to send heartbeats
        self._looked_s = -math.inf

    def spoke(self, worker: WorkerId, at_s: float) -> None:
        self._silence.spoke(worker, at_s)

    def runs(self, worker: WorkerId, at_s: float) -> None:
        """Its agent has looked."""
        self._silence.runs(worker, at_s)

    def came(self, worker: WorkerId) -> None:
        """Whoever comes under a name has not begun to beat."""
        self._beats.discard(worker)

    def beat(self, worker: WorkerId) -> None:
        self._beats.add(worker)

    def has_beaten(self, worker: WorkerId, at_s: float) -> None:
        """As :meth:`beat` and :meth:`spoke`."""
        self._beats.add(worker)
        self._silence.spoke(worker, at_s)

    def forgive(self, at_s: float) -> None:
        """Before each tick, whatever the run is at: a pause of our own is nobody's silence."""
        away_s = self._silence.forgive(at_s, self._run.timeouts.heartbeat_timeout_s)
        self._run.machines.forgive(away_s)

    def tick(self, at_s: float) -> list[Effect]:
        timeouts = self._run.timeouts
        effects: list[Effect] = []
        if self._is_look_due(at_s, timeouts.beat_s):
            standing = self._silence.standing(at_s)
            effects += self._stalls(standing, at_s)
            effects += [*self._silent(standing, at_s), *self._overdue(at_s)]
        for worker in self._joining.admission.late(at_s):
            if worker in self._beats and self._reconfigurations.replays(worker):
                continue  # that may take long, and its silence would be noticed
            cause = f"not ready after workers.start_limit_s={timeouts.start_limit_s:g}"
            effects += self._losing.lose(m.SilentTooLong(worker, at_s), cause)
        return effects

    def _is_look_due(self, at_s: float, beat_s: float) -> bool:
        """In a large run once a heartbeat: nothing is news before."""
        if self._run.is_large and 0 <= at_s - self._looked_s < beat_s:
            return False
        self._looked_s = at_s
        return True

    def _overdue(self, at_s: float) -> list[Effect]:
        if not self._reconfigurations.awaits_inventories:
            return []
        effects: list[Effect] = []
        cause = f"did not stop within {self._run.timeouts.answer_s:g} s"
        for worker in self._reconfigurations.overdue(at_s, self._stuck_detector.busy()):
            effects += self._losing.lose(m.SilentTooLong(worker, at_s), cause)
        return effects

    def _stalls(self, standing: Mapping[WorkerId, float], at_s: float) -> list[Effect]:
        """Members that are in one operation for too long: named first, then lost."""
        for worker in self._stuck_detector.known() - self._run.stages.keys():
            self._stuck_detector.forget(worker)
        mute = {w: seconds for w, seconds in standing.items() if self._is_judged(w)}
        look = self._stuck_detector.look(at_s, mute)
        effects: list[Effect] = [AskStack(stall.worker) for stall in look.ask]
        for stall in look.report:
            pid = self._run.hellos[stall.worker].pid
            effects.append(ReportStuck(stuck_event(stall, at_s), pid))
        for stall in look.lose:
            lost = m.SilentTooLong(stall.worker, at_s)
            effects += self._losing.lose(lost, stuck_words(stall))
        return effects

    def _is_judged(self, worker: WorkerId) -> bool:
        """By the limits of its operations. A replay, a copy and a start have others."""
        return worker in self._stuck_detector.known() and not self._reconfigurations.replays(worker)

    def _silent(self, standing: Mapping[WorkerId, float], at_s: float) -> list[Effect]:
        timeouts, effects = self._run.timeouts, list[Effect]()
        # Whoever has just spoken is neither silent nor looked at: nearly all.
        for worker in self._silence.late(self._run.membership.live, at_s, timeouts.look_s):
            silent_s = self._silence.of(worker, at_s)
            if not self._should_beat(worker):
                continue
            stood_s = 0.0 if self._is_judged(worker) else standing.get(worker, 0.0)
            if silent_s > timeouts.heartbeat_timeout_s or stood_s > timeouts.start_limit_s:
                cause = f"no heartbeat for {max(silent_s, stood_s):.1f} s"
                effects += self._lost_machines.lose_silent(worker, cause, at_s)
            elif self._silence.is_look_due(worker, at_s, timeouts):
                effects.append(LookAtWorker(worker))
        return effects

    def _should_beat(self, worker: WorkerId) -> bool:
        """From the first stage that it has built on."""
        has_built = (m.WorkerPhase.READY, m.WorkerPhase.COPYING, m.WorkerPhase.MEMBER)
        built = self._run.membership.phase(worker) in has_built
        return built or worker in self._beats
