"""A lost worker is started again while the others go on: when, and how often.

Only if every stage has a holder: else all go back or a stage is rebuilt, which starts whom it
needs (``restarting.py``). The two count apart.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit
from holdfast.control.join.joining import Joining
from holdfast.control.progress.reports import Reports
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.observability import events

WITHIN_STEPS = 100  # tries before this are forgotten
_FIRST_PAUSE_S = 0.5  # the others recover first; then twice as long each time
_MOST_PAUSE_S = 60.0
_LEAST_STEPS_LEFT = 2  # else it would come for nothing


@dataclass
class _Place:
    num_tried: int = 0  # lately
    tried_in: int = 0  # step of the last time
    missing_s: float | None = None  # since when; None: it is here, or on the way


class Replacing:
    def __init__(self, run: Run, reports: Reports, joining: Joining, policy: RecoveryRules) -> None:
        self._run, self._reports, self._joining = run, reports, joining
        self._policy = policy
        self._places = {worker: _Place() for worker in run.first_stages}
        self._left_out: set[WorkerId] = set()
        self._local: dict[WorkerId, int] = {}  # process ids of those that the agent has started

    def on_started(self, worker: WorkerId, pid: int) -> None:
        self._local[worker] = pid

    def leave_out(self, worker: WorkerId) -> bool:
        """It is to stay away; whether that is news."""
        is_news = worker not in self._left_out
        self._left_out.add(worker)
        return is_news

    @property
    def left_out(self) -> AbstractSet[WorkerId]:
        """Who is to stay away."""
        return self._left_out

    def due(self, at_s: float) -> list[Effect]:
        """Whoever is to be started now. Asked again and again while training goes on."""
        run = self._run
        lost = set(run.membership.missing)
        for worker, place in self._places.items():
            since_s = at_s if place.missing_s is None else place.missing_s
            place.missing_s = since_s if worker in lost else None
        if not self._is_wanted():
            return []
        effects: list[Effect] = []
        for worker in sorted(lost & self._places.keys() - self._left_out):
            may = self.is_local(worker) and self._may_start(self._places[worker], at_s)
            if may and self._joining.admission.seating.has_room(worker):
                effects += self._start(worker, at_s)
        return effects

    def _is_wanted(self) -> bool:
        run = self._run
        whole = (
            run.phase is RunPhase.TRAINING
            and not run.placement.lost_stages
            and not run.logs.is_replaying
        )
        is_worth_it = self._reports.steps_left >= _LEAST_STEPS_LEFT
        return self._policy.replaces_lost and whole and is_worth_it

    def is_local(self, worker: WorkerId) -> bool:
        """Who has come by hand is not ours to bring back."""
        hello = self._run.hellos.get(worker)
        threads = self._run.config.workers.kind == "threads"
        return threads or hello is None or self._local.get(worker) == hello.pid

    def _may_start(self, place: _Place, at_s: float) -> bool:
        if self._reports.next_step - place.tried_in >= WITHIN_STEPS:
            place.num_tried = 0
        if place.missing_s is None or place.num_tried >= self._run.config.workers.replace:
            return False
        pause_s: float = min(_MOST_PAUSE_S, _FIRST_PAUSE_S * 2**place.num_tried)
        return at_s - place.missing_s >= pause_s

    def _start(self, worker: WorkerId, at_s: float) -> list[Effect]:
        place = self._places[worker]
        place.num_tried, place.tried_in = place.num_tried + 1, self._reports.next_step
        place.missing_s = None
        replaced = events.WorkerReplaced(
            at_s=at_s,
            worker=str(worker),
            number=place.num_tried,
            limit=self._run.config.workers.replace,
        )
        return [Emit(replaced), self._joining.admission.start(worker, at_s)]
