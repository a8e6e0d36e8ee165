"""Workers that come (back), or change sides: to which stage, and when they can become members.

The change that makes one a member is made elsewhere; so is the copy of its state.
"""

from collections.abc import Iterable, Mapping

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.join.admission import Admission
from holdfast.control.join.copies import Copies
from holdfast.control.join.joiner import Joiner, Joiners
from holdfast.control.plans import Plans
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.observability import events
from holdfast.protocol import messages

_STATES = {
    m.WorkerPhase.STARTING: "starting",
    m.WorkerPhase.BUILDING: "loading the job",
    m.WorkerPhase.READY: "copying the state",
    m.WorkerPhase.COPYING: "copying the state",
}


class Joining:
    def __init__(self, run: Run, tracker: ProgressTracker, plans: Plans) -> None:
        self._run, self._tracker, self._plans = run, tracker, plans
        self._joiners = Joiners()
        self.admission = Admission(run, tracker, self._joiners)
        self.copies = Copies(run, self._joiners)
        self._entered: list[WorkerId] = []  # with the present change

    @property
    def joiners(self) -> Mapping[WorkerId, Joiner]:
        return self._joiners.all

    @property
    def under_way(self) -> bool:
        return bool(self.joiners) or bool(self._run.membership.all_in(m.WorkerPhase.STARTING))

    # --- it has come ---

    def on_hello(self, hello: messages.Hello, steps_left: int, at_s: float) -> list[Effect]:
        ready = self.admission.welcome(hello, at_s)
        return [ready, *self._place(parse_worker(hello.worker), steps_left, at_s)]

    def _place(self, worker: WorkerId, steps_left: int, at_s: float) -> list[Effect]:
        run = self._run
        taken = {**run.stages, **run.placement.rolling_back, **self._joiners.stages}
        stage = self._plans.stage_for(worker, taken, steps_left)
        joiner = Joiner(stage, None, "it has come")
        if stage in run.placement.lost_stages and run.logs.is_replaying:
            self.hosts(worker, joiner)
            return []
        return self.give(worker, joiner, at_s)

    def give(self, worker: WorkerId, joiner: Joiner, at_s: float) -> list[Effect]:
        self._joiners.put(worker, joiner)
        joiner.give(at_s)
        self.admission.waits(worker, at_s)
        return [self._run.assign(worker, joiner.stage, state=("", 0))]

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        self._run.membership.handle(m.IsReady(worker, at_s))
        return self.copies.find_sources(at_s)

    # --- another coordinator has taken over ---

    def begins_again(self, worker: WorkerId, steps_left: int, at_s: float) -> list[Effect]:
        """It was on the way before, and has come back: from the beginning."""
        halt = Send(worker, messages.Halt(epoch=self._run.epoch))  # it may be copying
        return [halt, *self._place(worker, steps_left, at_s)]

    def stands_ready(self, worker: WorkerId, stage: int) -> None:
        """It was going back to a checkpoint: it can be given any stage."""
        self._joiners.put(worker, Joiner(stage, None, "it goes back"))

    def tell_boundaries_to(self, workers: Iterable[WorkerId]) -> None:
        """With the next Proceed: the word of it may have been lost."""
        self._entered += workers

    # --- hosts of a stage that nobody holds ---

    def hosts(self, worker: WorkerId, joiner: Joiner) -> None:
        """It is to hold a stage that nobody holds: it is given it when the state is rebuilt."""
        joiner.host()
        self._joiners.put(worker, joiner)

    def stands_by(self, worker: WorkerId) -> list[Effect]:
        """Whom it copied from is gone: it is to wait no longer."""
        self.joiners[worker].stand_by()
        return self.copies.halt_if_copying(worker)

    def free_hosts(self, at_s: float) -> list[Effect]:
        """Those who wait for a state are given an empty stage, as any joiner."""
        waiting = [(w, joiner) for w, joiner in self.joiners.items() if joiner.awaits_state]
        return [effect for w, joiner in waiting for effect in self.give(w, joiner, at_s)]

    # --- becoming a member ---

    def caught_up(self, at_s: float) -> list[WorkerId]:
        """Joiners that are at most a step behind their stage."""
        return [
            worker
            for worker, joiner in sorted(self.joiners.items())
            if joiner.version is not None
            and at_s >= joiner.not_before_s
            and joiner.version >= self._step_of(joiner.stage) - 1
        ]

    def _step_of(self, stage: int) -> int:
        holders = self._run.placement.holders(stage)
        return max((self._tracker.step_of(worker) for worker in holders), default=0)

    def enters(self, worker: WorkerId) -> None:
        self.joiners[worker].enter()

    def postpone(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """It was too far behind after all: it follows on, and is asked less often."""
        joiner = self.joiners[worker]
        joiner.postpone(at_s)
        # One whose source is gone is given another.
        return [self.copies.follow(worker)] if self.copies.goes_on(joiner) else []

    def entered(self, worker: WorkerId, step: int, at_s: float) -> Effect:
        joiner = self._joiners.take(worker)
        self.admission.entered(worker)
        self._run.membership.handle(m.Entered(worker, at_s))
        self._run.placement.hold(worker, joiner.stage)
        self._entered.append(worker)
        return Emit(_entered(worker, joiner, step, at_s))

    def log_boundaries(self) -> list[Effect]:
        """For those who have just entered: it may have been decided while they built."""
        run, entered = self._run, self._entered
        self._entered = []
        if not run.logs.limits:
            return []
        orders = {w: run.logs.limits[run.stages[w]] for w in entered if w in run.stages}
        boundaries = list(run.logs.boundaries)
        return [
            Send(worker, messages.LogBoundaries(boundaries=boundaries, limit_bytes=limit))
            for worker, limit in sorted(orders.items())
        ]

    # --- it does not come to that ---

    def unfinished(self, at_s: float) -> list[Effect]:
        """Those that are still on the way when the run ends. Who changes its stage is here."""
        run = self._run
        moving = [w for w, joiner in self.joiners.items() if joiner.from_stage is not None]
        return [
            Emit(
                events.JoinUnfinished(
                    at_s=at_s,
                    worker=str(worker),
                    fault=self.admission.fault_of(worker),
                    state=_STATES[run.membership.phase(worker)],
                )
            )
            for worker in run.membership.all_in(*m.JOINING)
            if worker not in moving and worker not in run.placement.rolling_back
        ]

    def forget(self, worker: WorkerId) -> None:
        self.admission.forget(worker)
        self._joiners.forget(worker)

    def rolls_back(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """It goes back with the others; it copies from nobody any more."""
        halted = self.copies.halt_if_copying(worker)
        self.forget(worker)
        self.admission.waits(worker, at_s)
        return halted


def _entered(
    worker: WorkerId, joiner: Joiner, step: int, at_s: float
) -> events.WorkerMoved | events.WorkerJoined:
    if joiner.from_stage is not None:
        return events.WorkerMoved(
            at_s=at_s,
            worker=str(worker),
            from_stage=joiner.from_stage,
            to_stage=joiner.stage,
            step=step,
            reason=joiner.reason,
        )
    return events.WorkerJoined(
        at_s=at_s,
        worker=str(worker),
        stage=joiner.stage,
        step=step,
        copied_bytes=joiner.num_bytes,
        took_s=joiner.took_s,
    )


def failed(worker: WorkerId, reason: str, at_s: float) -> Effect:
    return Emit(events.JoinFailed(at_s=at_s, worker=str(worker), reason=reason))
