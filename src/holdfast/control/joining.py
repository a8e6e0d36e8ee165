"""Workers that come (back), or change sides: who may, to which stage, from whom they copy.

Knows when a joiner has caught up; the change that makes it a member is made elsewhere.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control import membership as m
from holdfast.control.checks import check_alike, check_built_alike, check_same_job
from holdfast.control.effects import Effect, Emit, Send, StartWorker
from holdfast.control.lifecycle import RunPhase
from holdfast.control.losses import Work
from holdfast.control.plans import Plans
from holdfast.control.run import Run
from holdfast.control.starting import worker_ready
from holdfast.errors import ConfigError
from holdfast.faults.fault import FaultKind
from holdfast.observability import events
from holdfast.protocol import messages

_FIRST_RETRY_S = 0.2
_MOST_STARVED = 3  # copies: whoever cannot keep up by then never will

_STATES = {
    m.Phase.STARTING: "starting",
    m.Phase.BUILDING: "loading the job",
    m.Phase.READY: "copying the state",
    m.Phase.COPYING: "copying the state",
}


@dataclass
class Joiner:
    stage: int
    from_stage: int | None  # None: it has just come
    reason: str
    source: WorkerId | None = None
    given_s: float = 0.0  # when it was given its stage
    asked_s: float = 0.0  # when its copy began
    version: int | None = None  # that it has; None: nothing yet
    took_s: float = 0.0  # for the first whole copy
    num_bytes: int = 0  # of it
    awaits_state: bool = False  # of a stage that nobody holds: it is given it when it is rebuilt
    entering: bool = False  # a change is to make it a member: it is told nothing else meanwhile
    num_starved: int = 0  # copies of which nothing more came
    retry_s: float = _FIRST_RETRY_S
    not_before_s: float = 0.0


class Joining:
    def __init__(self, run: Run, work: Work, plans: Plans) -> None:
        self._run = run
        self._work = work
        self._plans = plans
        self.joiners: dict[WorkerId, Joiner] = {}
        self._invited_s: dict[WorkerId, float] = {}
        self._entered: list[WorkerId] = []  # with the present change
        self._used: set[int] = set()  # join faults, by their place in the list
        self._ordered: dict[WorkerId, str] = {}  # join faults, by whom they have started

    @property
    def under_way(self) -> bool:
        return bool(self.joiners) or bool(self._run.membership.all_in(m.Phase.STARTING))

    # --- asking for a place ---

    def grant(self, request: messages.JoinRequest, job_sha256: str, at_s: float) -> WorkerId:
        """The place for whoever asks; ConfigError says why there is none."""
        run = self._run
        if run.phase is not RunPhase.TRAINING:
            raise ConfigError(f"nobody can join: the run is {run.phase.name.lower()}; try later")
        if run.ending.is_early:
            raise ConfigError("nobody can join: the run was interrupted and is about to end")
        if request.job_sha256 not in ("", job_sha256):
            raise ConfigError(
                f"job file {request.job_sha256[:12]} differs from the run's, {job_sha256[:12]} "
                "(SHA-256): join with the same file, or without one"
            )
        self._check_known("the joining worker", request.fingerprint)
        worker = self._place(request.worker)
        self._invite(worker, at_s)
        return worker

    def _place(self, wish: str) -> WorkerId:
        missing = self._run.membership.missing
        if not wish:
            if not missing:
                coming = ", ".join(map(str, self._run.membership.all_in(m.Phase.STARTING)))
                alive = f"{coming} is just being started" if coming else "every worker is alive"
                raise ConfigError(f"nobody is missing: {alive}; try again when one is lost")
            return self.most_wanted(missing)
        try:
            worker = parse_worker(wish)
        except ValueError as why:
            raise ConfigError(str(why)) from why
        if not self._run.membership.knows(worker):
            shape = self._run.shape
            raise ConfigError(
                f"there is no worker {worker}: the run has {shape.pipelines} pipelines x "
                f"{shape.stages} stages"
            )
        if worker not in missing:
            others = ", ".join(map(str, missing)) or "nobody"
            raise ConfigError(f"worker {worker} is alive: missing is {others}")
        return worker

    def most_wanted(self, missing: Collection[WorkerId]) -> WorkerId:
        held = [*self._run.stages.values(), *(j.stage for j in self.joiners.values())]
        return min(missing, key=lambda worker: (held.count(worker.stage), worker))

    def _invite(self, worker: WorkerId, at_s: float) -> None:
        self._run.membership.handle(m.Invited(worker, at_s))
        self._invited_s[worker] = at_s

    def late(self, at_s: float) -> list[WorkerId]:
        """Those that were asked for, or given a stage, and never got so far as to copy.

        One that is given another stage before it has built the first builds both.
        """
        run, limit_s = self._run, self._run.config.workers.start_limit_s
        waiting = run.membership.all_in(m.Phase.STARTING, m.Phase.BUILDING)
        since = {worker: at_s - self._invited_s.get(worker, at_s) for worker in waiting}
        return [
            w
            for w, past_s in since.items()
            if past_s > limit_s * max(1, run.assignments.num_builds(w))
        ]

    def ordered(self, step: int, at_s: float) -> list[Effect]:
        """``join`` faults whose step has come, as soon as somebody is missing."""
        effects: list[Effect] = []
        for number, fault in enumerate(self._run.settings.faults):
            if fault.kind is not FaultKind.JOIN or number in self._used or step < fault.step:
                continue
            missing = self._run.membership.missing
            wanted = [w for w in missing if fault.worker in (None, w)]
            if not wanted:
                continue
            worker = self.most_wanted(wanted)
            self._used.add(number)
            self._run.assignments.fire(str(fault))
            self._ordered[worker] = str(fault)
            start = self.start(worker, at_s)
            fired = events.FaultFired(at_s=at_s, worker="", fault=str(fault), step=step, point="")
            effects += [Emit(fired), start]
        return effects

    def start(self, worker: WorkerId, at_s: float) -> Effect:
        """A missing worker is to come back."""
        self._invite(worker, at_s)
        return StartWorker(worker)

    # --- building and copying ---

    def welcome(self, hello: messages.Hello, at_s: float) -> Effect:
        """Whoever has come, for whatever it is needed; ConfigError: it cannot take part."""
        run = self._run
        worker = parse_worker(hello.worker)
        first = min(run.first_stages)
        check_same_job({str(first): run.hellos[first].traits, hello.worker: hello.traits})
        num_layers = run.hellos[first].num_layers
        if hello.num_layers != num_layers:
            raise ConfigError(f"its job has {hello.num_layers} layers, the run's {num_layers}")
        known = run.hellos[first].layer_hashes
        check_built_alike({str(first): known, hello.worker: hello.layer_hashes})
        self._check_like(hello.worker, hello.fingerprint)
        run.membership.handle(m.SaidHello(worker, at_s))
        run.roster.enroll(worker, hello)
        run.assignments.forget(worker)
        self._work.forget(worker)
        return Emit(worker_ready(hello, at_s))

    def on_hello(self, hello: messages.Hello, steps_left: int, at_s: float) -> list[Effect]:
        ready, run, worker = self.welcome(hello, at_s), self._run, parse_worker(hello.worker)
        joiners = {other: joiner.stage for other, joiner in self.joiners.items()}
        taken = {**run.stages, **run.placement.rolling_back, **joiners}
        stage = self._plans.stage_for(worker, taken, steps_left)
        joiner = Joiner(stage, None, "it has come")
        if stage in run.placement.lost_stages and run.logs.is_replaying:
            self.hosts(worker, joiner)
            return [ready]
        return [ready, *self.give(worker, joiner, at_s)]

    def _check_known(self, name: str, known: Mapping[str, str]) -> None:
        """What it can say before it has loaded anything; the rest comes with its hello."""
        own = self._run.hellos[min(self._run.hellos)].fingerprint
        self._check_like(name, dict(own) | dict(known))

    def _check_like(self, name: str, fingerprint: Mapping[str, str]) -> None:
        run = self._run
        one = min(run.hellos)
        prints = {str(one): run.hellos[one].fingerprint, name: fingerprint}
        check_alike(prints, allow_mixed=run.config.workers.allow_mixed)

    def give(self, worker: WorkerId, joiner: Joiner, at_s: float) -> list[Effect]:
        self.joiners[worker] = joiner
        joiner.given_s = self._invited_s[worker] = at_s
        return [self._run.assign(worker, joiner.stage, state=("", 0))]

    def hosts(self, worker: WorkerId, joiner: Joiner) -> None:
        """It is to hold a stage that nobody holds: it is given it when the state is rebuilt."""
        joiner.awaits_state = True
        self.joiners[worker] = joiner

    def stands_by(self, worker: WorkerId) -> list[Effect]:
        """Whom it copied from is gone: it is to wait no longer."""
        copies = self._run.membership.phase(worker) is m.Phase.COPYING
        self.joiners[worker].source, self.joiners[worker].awaits_state = None, False
        return [self._halt(worker)] if copies else []

    def waits(self, worker: WorkerId, at_s: float) -> None:
        """It is not its fault that nothing comes of it yet."""
        self._invited_s[worker] = at_s

    def on_ready(self, worker: WorkerId, at_s: float) -> list[Effect]:
        self._run.membership.handle(m.IsReady(worker, at_s))
        return self.find_sources(at_s)

    def find_sources(self, at_s: float) -> list[Effect]:
        """For every joiner that is built and copies from nobody who could give it the state."""
        if self._run.phase is not RunPhase.TRAINING:
            return []
        effects: list[Effect] = []
        for worker in self._run.membership.all_in(m.Phase.READY, m.Phase.COPYING):
            joiner = self.joiners.get(worker)
            if joiner is not None and joiner.source not in self._run.placement.holders(
                joiner.stage
            ):
                effects += self._copy(worker, joiner, at_s)
        return effects

    def enters(self, worker: WorkerId) -> None:
        self.joiners[worker].entering = True

    def complains(self, worker: WorkerId, about: WorkerId, at_s: float) -> list[Effect]:
        """The copy broke off: from somebody else, if there is somebody. It ends no member."""
        joiner = self.joiners.get(worker)
        if joiner is None or joiner.source != about:
            return []
        return self._copy(worker, joiner, at_s)

    def starves(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """Its source sends nothing: it begins anew; ConfigError: it never keeps up."""
        joiner = self.joiners.get(worker)
        if joiner is None:
            return []
        joiner.num_starved += 1
        if joiner.num_starved > _MOST_STARVED and not joiner.entering:
            raise ConfigError(
                f"it did not get the state of stage {joiner.stage} in {joiner.num_starved} copies: "
                "its connection is slower than training goes on"
            )
        return self._copy(worker, joiner, at_s)

    def _copy(self, worker: WorkerId, joiner: Joiner, at_s: float) -> list[Effect]:
        busy = [other.source for other in self.joiners.values()]
        holders = self._run.placement.holders(joiner.stage)
        if not holders or joiner.entering:
            return []  # the stage is lost and all go back, or it will be asked for what it has
        # It may wait for somebody who will send nothing any more.
        halt = [] if joiner.source is None else [self._halt(worker)]
        self._run.membership.handle(m.Copies(worker, at_s))
        joiner.source = min(holders, key=lambda holder: (busy.count(holder), holder))
        joiner.asked_s, joiner.version = at_s, None
        hello = self._run.hellos[worker]
        share = messages.ShareState(to=str(worker), host=hello.host, port=hello.port)
        return [*halt, self.follow(worker), Send(joiner.source, share)]

    def _halt(self, worker: WorkerId) -> Effect:
        return Send(worker, messages.Halt(epoch=self._run.epoch))

    def follow(self, worker: WorkerId) -> Effect:
        """Copy, or go on copying, in the epoch that is now."""
        source = self.joiners[worker].source
        return Send(worker, messages.CopyState(source=str(source), epoch=self._run.epoch))

    def on_copied(self, copied: messages.Copied, at_s: float) -> None:
        worker = parse_worker(copied.worker)
        joiner = self.joiners.get(worker)
        if joiner is None or self._run.membership.phase(worker) is not m.Phase.COPYING:
            return  # it was told to do something else meanwhile
        if copied.source != str(joiner.source):
            return  # it works off what a former source had sent
        self._run.membership.handle(m.Copied(worker, at_s))
        if joiner.version is None:
            joiner.took_s = at_s - joiner.asked_s
            self._run.times.note_copy(at_s - joiner.given_s)  # so long a mover helps nobody
        joiner.version, joiner.num_bytes = copied.version, copied.num_bytes

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
        return max((self._work.step_of(w) for w in self._run.placement.holders(stage)), default=0)

    def postpone(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """It was too far behind after all: it follows on, and is asked less often."""
        joiner = self.joiners[worker]
        joiner.entering = False
        joiner.not_before_s = at_s + joiner.retry_s
        joiner.retry_s *= 2
        goes_on = joiner.source in self._run.placement.holders(
            joiner.stage
        )  # else it is given another
        return [self.follow(worker)] if goes_on else []

    def entered(self, worker: WorkerId, step: int, at_s: float) -> Effect:
        joiner = self.joiners.pop(worker)
        self._invited_s.pop(worker, None)
        self._run.membership.handle(m.Entered(worker, at_s))
        self._run.placement.hold(worker, joiner.stage)
        self._entered.append(worker)
        self._ordered.pop(worker, None)
        if joiner.from_stage is not None:
            moved = events.WorkerMoved(
                at_s=at_s,
                worker=str(worker),
                from_stage=joiner.from_stage,
                to_stage=joiner.stage,
                step=step,
                reason=joiner.reason,
            )
            return Emit(moved)
        joined = events.WorkerJoined(
            at_s=at_s,
            worker=str(worker),
            stage=joiner.stage,
            step=step,
            copied_bytes=joiner.num_bytes,
            took_s=joiner.took_s,
        )
        return Emit(joined)

    def log_borders(self) -> list[Effect]:
        """For those who have just entered: it may have been decided while they built."""
        run, entered = self._run, self._entered
        self._entered = []
        if not run.logs.limits:
            return []
        orders = {w: run.logs.limits[run.stages[w]] for w in entered if w in run.stages}
        borders = list(run.logs.borders)
        return [
            Send(worker, messages.LogBorders(borders=borders, limit_bytes=limit))
            for worker, limit in sorted(orders.items())
        ]

    def unfinished(self, at_s: float) -> list[Effect]:
        """Those that are still on the way when the run ends. Who changes its stage is here."""
        waiting = self._run.membership.all_in(*m.JOINING)
        moving = [w for w, joiner in self.joiners.items() if joiner.from_stage is not None]
        return [
            Emit(
                events.JoinUnfinished(
                    at_s=at_s,
                    worker=str(worker),
                    fault=self._ordered.get(worker, ""),
                    state=_STATES[self._run.membership.phase(worker)],
                )
            )
            for worker in waiting
            if worker not in moving and worker not in self._run.placement.rolling_back
        ]

    def forget(self, worker: WorkerId) -> None:
        self._invited_s.pop(worker, None)
        self.joiners.pop(worker, None)

    def rebuilds(self, worker: WorkerId, at_s: float) -> list[Effect]:
        """It goes back with the others; it copies from nobody any more."""
        copies = self._run.membership.phase(worker) is m.Phase.COPYING
        self.forget(worker)
        self._invited_s[worker] = at_s
        return [self._halt(worker)] if copies else []


def failed(worker: WorkerId, reason: str, at_s: float) -> Effect:
    return Emit(events.JoinFailed(at_s=at_s, worker=str(worker), reason=reason))
