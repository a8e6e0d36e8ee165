"""Who may come into the run, under which name, and for how long it is waited for.

What it does there once it has said hello is known elsewhere.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.checks import check_alike, check_built_alike, check_same_job
from holdfast.control.effects import Effect, Emit
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.join.joiner import Joiners
from holdfast.control.join.seating import Seating
from holdfast.control.join.starting import worker_ready
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import ConfigError
from holdfast.faults.fault import FaultKind
from holdfast.observability import events
from holdfast.protocol import messages


class Admission:
    def __init__(self, run: Run, tracker: ProgressTracker, joiners: Joiners) -> None:
        self._run, self._tracker, self._joiners = run, tracker, joiners
        self.seating = Seating(run)
        self._invited_s: dict[WorkerId, float] = {}
        faults = enumerate(run.settings.faults)
        self._joins = [(n, fault) for n, fault in faults if fault.kind is FaultKind.JOIN]
        self._used: set[int] = set()  # join faults, by their place in the list
        self._ordered: dict[WorkerId, str] = {}  # join faults, by whom they have started

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
                coming = ", ".join(map(str, self._run.membership.all_in(m.WorkerPhase.STARTING)))
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
        held = [*self._run.stages.values(), *self._joiners.stages.values()]
        return min(missing, key=lambda worker: (held.count(worker.stage), worker))

    def _invite(self, worker: WorkerId, at_s: float) -> None:
        self._run.membership.handle(m.Invited(worker, at_s))
        self.waits(worker, at_s)

    def ordered(self, step: int, at_s: float) -> list[Effect]:
        """``join`` faults whose step has come, as soon as somebody is missing."""
        effects: list[Effect] = []
        for number, fault in self._joins:
            if number in self._used or step < fault.step:
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

    @property
    def joins_used(self) -> AbstractSet[int]:
        """Join faults that have fired, by their place in the list."""
        return self._used

    def recall(self, joins_used: Iterable[int]) -> None:
        """As another coordinator has left it."""
        self._used = set(joins_used)

    def fault_of(self, worker: WorkerId) -> str:
        """That it was started by; empty: by none."""
        return self._ordered.get(worker, "")

    def start(self, worker: WorkerId, at_s: float) -> Effect:
        """A missing worker is to come back."""
        self._invite(worker, at_s)
        return self.seating.start(worker, at_s)

    # --- how long it is waited for ---

    def waits(self, worker: WorkerId, at_s: float) -> None:
        """The time that it may take counts from here."""
        self._invited_s[worker] = at_s

    def late(self, at_s: float) -> list[WorkerId]:
        """Those that were asked for, or given a stage, and never got so far as to copy.

        One that is given another stage before it has built the first builds both.
        """
        run, limit_s = self._run, self._run.config.workers.start_limit_s
        waiting = run.membership.all_in(m.WorkerPhase.STARTING, m.WorkerPhase.BUILDING)
        for worker in waiting:
            if self.seating.waits(worker, at_s):
                self.waits(worker, at_s)
        since = {worker: at_s - self._invited_s.get(worker, at_s) for worker in waiting}
        builds = run.assignments.num_builds
        return [w for w, past_s in since.items() if past_s > limit_s * max(1, builds(w))]

    def forget(self, worker: WorkerId) -> None:
        self._invited_s.pop(worker, None)
        self.seating.forget(worker)

    def entered(self, worker: WorkerId) -> None:
        self.forget(worker)
        self._ordered.pop(worker, None)

    # --- hello ---

    def welcome(self, hello: messages.Hello, at_s: float) -> Effect:
        """Whoever has come, for whatever it is needed; ConfigError: it cannot take part."""
        run = self._run
        worker = parse_worker(hello.worker)
        first = run.roster.first
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
        self._tracker.forget(worker)
        return Emit(worker_ready(hello, at_s))

    def _check_known(self, name: str, known: Mapping[str, str]) -> None:
        """What it can say before it has loaded anything; the rest comes with its hello."""
        own = self._run.hellos[self._run.roster.first].fingerprint
        self._check_like(name, dict(own) | dict(known))

    def _check_like(self, name: str, fingerprint: Mapping[str, str]) -> None:
        run, one = self._run, self._run.roster.first
        prints = {str(one): run.hellos[one].fingerprint, name: fingerprint}
        check_alike(prints, allow_mixed=run.config.workers.allow_mixed)
