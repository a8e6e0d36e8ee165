"""Starts lost workers again, as long as that brings the run forward. Knows no stages.

Whether somebody is needed is decided elsewhere; here it is only counted how often in vain.
"""

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect
from holdfast.control.join.joining import Joining
from holdfast.control.progress.reports import Reports
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m


class Restarting:
    """At most ``workers.restarts`` times in a row without a step that was never finished before."""

    def __init__(self, run: Run, reports: Reports, joining: Joining) -> None:
        self._run, self._reports, self._joining = run, reports, joining
        self._asked: set[WorkerId] = set()
        self._most_finished = -1  # steps, when somebody was last started
        self._num_tried = 0  # in a row

    def ask(self, at_s: float, place: WorkerId | int | None = None) -> list[Effect]:
        """Start a missing worker: this one, one for this stage, or the one who helps most.

        Empty: it is not missing, or it was tried too often. Who is asked for while others are
        still on the way, and none of them has failed, counts as one time together with them.
        """
        missing = self._run.membership.missing
        wanted = [w for w in missing if place in (None, w, w.stage)]
        if not wanted and isinstance(place, int):
            wanted = missing  # a place is a name: anybody can hold any stage
        if not wanted or not self._may_try():
            return []
        worker = self._joining.admission.most_wanted(wanted)
        self._asked.add(worker)
        return [self._joining.admission.start(worker, at_s)]

    def everyone(self, at_s: float) -> list[Effect]:
        """All that the run began with and that are missing now; empty: it was tried too often."""
        missing = self._run.membership.missing
        places = [worker for worker in sorted(self._run.first_stages) if worker in missing]
        return [effect for place in places for effect in self.ask(at_s, place)]

    @property
    def tried(self) -> str:
        """For the error when it did not help; empty: nobody was to be started again."""
        limit = self._run.config.workers.restarts
        if not limit:
            return ""
        times = "once" if self._num_tried == 1 else f"{self._num_tried} times"
        return f"Workers were started again {times} in a row (workers.restarts={limit}) in vain. "

    @property
    def _is_same_round(self) -> bool:
        """Somebody is on the way. One who was asked for and is missing again ends the round: with
        two of them, one would always be on the way, and their failures would never count."""
        membership = self._run.membership
        failed = self._asked & set(membership.missing)
        return not failed and bool(self._asked & set(membership.all_in(m.WorkerPhase.STARTING)))

    def _may_try(self) -> bool:
        if self._is_same_round:
            return True
        self._asked.clear()
        if self._reports.next_step > self._most_finished:
            self._most_finished, self._num_tried = self._reports.next_step, 0
        if self._num_tried >= self._run.config.workers.restarts:
            return False
        self._num_tried += 1
        return True
