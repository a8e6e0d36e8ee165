"""From the parts of a coordinator to a snapshot, and from a snapshot to those of its successor.

Reads and fills; what is done with it is known elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.parts import CoordinatorParts
from holdfast.control.progress.nonfinite import NonfiniteCount
from holdfast.control.state.current_plan import Cut, Steady
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.control.takeover import snapshot as s
from holdfast.protocol import messages
from holdfast.schedule.costs import Costs
from holdfast.schedule.schedule import loads

_NUM_STEPS_S = 50  # as many as timeouts are taken from
_HAVE_SPOKEN = (WorkerPhase.BUILDING, WorkerPhase.READY, WorkerPhase.COPYING, WorkerPhase.MEMBER)


@dataclass(frozen=True, slots=True)
class Former:
    """What a successor begins with."""

    snapshot: s.RunSnapshot
    next_step: int  # the first one of which nobody was told that it is finished
    sealed: int | None  # step of the newest whole checkpoint of the run, as found on disk
    at_s: float = 0.0  # now


# --- what is written ---


class Writer:
    """Makes snapshots; who has said hello is not written anew if nobody else has come since."""

    def __init__(self, run: Run, parts: CoordinatorParts) -> None:
        self._run, self._parts = run, parts
        self._known: dict[WorkerId, messages.Hello] = {}
        self._rows: tuple[list[s.HelloKind], dict[str, s.HelloRow]] = [], {}
        self._plans: list[tuple[Steady, s.SteadyRow]] = []  # that were written last

    def key(self) -> object:
        """Another one whenever there is something to write. Cheap: it is asked for often."""
        run, parts = self._run, self._parts
        return (
            run.phase,
            run.epoch,
            run.membership.num_changes,
            id(run.plan.steady),
            run.plan.steady_from,
            run.assignments.num_given,
            len(run.assignments.parts),
            len(run.assignments.fired),
            run.saved.sealed,
            len(run.saved.rules),
            run.logs.boundaries,
            run.logs.history,
            len(parts.joining.admission.joins_used),
            len(parts.replacing.left_out),
            run.machines.draining,
            run.machines.num_seated,
            len(run.validations.found),
            run.validations.over,
        )

    def snapshot(self) -> s.RunSnapshot:
        run, parts = self._run, self._parts
        kinds, hellos = self._hello_rows()
        settings, checkpoints = run.settings, parts.reports.checkpoints
        return s.RunSnapshot(
            run_id=settings.run_id,
            address=settings.address,
            resumed="" if settings.resume is None else settings.resume.directory,
            phase=_phase(run),
            epoch=run.epoch,
            next_step=parts.reports.next_step,
            cut=_cut_row(run.plan.cut),
            first=self._steady_row(run.plan.first),
            steady=self._steady_row(run.plan.steady),
            steady_from=run.plan.steady_from,
            planned_for=_named(run.plan.planned_for),
            stages=_named(run.stages),
            rolling_back=_named(self._rolling_back()),
            workers={
                str(worker): run.membership.phase(worker).name  # type: ignore[misc]
                for worker in run.membership.all_in(*WorkerPhase)
            },
            hello_kinds=kinds,
            hellos=hellos,
            parts={
                name: s.PartRow(str(worker), stage)
                for name, (worker, stage) in run.assignments.parts.items()
            },
            num_given=run.assignments.num_given,
            fired=sorted(run.assignments.fired),
            joins_used=sorted(parts.joining.admission.joins_used),
            seats={
                str(worker): machine
                for worker in run.membership.all_in(*WorkerPhase)
                if (machine := run.machines.of(worker))
            },
            by_hand=[str(w) for w in sorted(run.hellos) if not parts.replacing.is_local(w)],
            left_out=[str(worker) for worker in sorted(parts.replacing.left_out)],
            draining=sorted(run.machines.draining),
            rules=list(run.saved.rules),
            compared_from=checkpoints.compared_from,
            log=s.LogRow(list(run.logs.boundaries), dict(run.logs.limits), *run.logs.history),
            times=s.TimesRow(
                list(run.times.steps_s[-_NUM_STEPS_S:]), run.times.stop_s, run.times.copy_s
            ),
            nonfinite=s.NonfiniteRow(*parts.reports.nonfinite.count),
            validations=list(run.validations.found),
            validated=run.validations.over,
        )

    def _rolling_back(self) -> Mapping[WorkerId, int]:
        """Also of those who will go on with it as soon as all are back."""
        run, joiners = self._run, self._parts.joining.joiners
        if run.phase is not RunPhase.REGAINING or not run.lifecycle.was_returning:
            return run.placement.rolling_back
        ready = run.membership.all_in(WorkerPhase.READY)
        return {worker: joiners[worker].stage for worker in ready if worker in joiners}

    def _steady_row(self, steady: Steady) -> s.SteadyRow:
        """Lanes are long, and seldom other ones."""
        row = next((row for known, row in self._plans if known is steady), None)
        if row is None:
            row = s.SteadyRow(steady.schedule.dumps_relative(), steady.period_s, steady.reason)
            self._plans = [*self._plans[-1:], (steady, row)]
        return row

    def _hello_rows(self) -> tuple[list[s.HelloKind], dict[str, s.HelloRow]]:
        hellos = self._run.hellos
        if self._known != hellos:
            self._known, self._rows = dict(hellos), _hellos(hellos)
        return self._rows


def _phase(run: Run) -> s.Phase:
    """While they come back it is as before: nothing else was decided."""
    if run.phase is RunPhase.REGAINING:
        return "RETURNING" if run.lifecycle.was_returning else "TRAINING"
    return run.phase.name  # type: ignore[return-value]


def _cut_row(cut: Cut) -> s.CutRow:
    costs = cut.costs
    rows = (costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s, costs.step_s)
    forward_s, input_s, weight_s, fused_s, step_s = map(list, rows)
    row = s.CostRow(forward_s, input_s, weight_s, fused_s, step_s, costs.link_s)
    return s.CutRow(list(cut.layers), row, cut.guessed, cut.reason, cut.in_flight)


def _hellos(
    hellos: Mapping[WorkerId, messages.Hello],
) -> tuple[list[s.HelloKind], dict[str, s.HelloRow]]:
    kinds: list[s.HelloKind] = []
    rows = {}
    for worker, hello in sorted(hellos.items()):
        traits, hashes = hello.traits, hello.layer_hashes
        kind = s.HelloKind(hello.fingerprint, traits, hello.num_layers, hashes, hello.cut)
        if kind not in kinds:
            kinds.append(kind)
        device = (hello.device_index, hello.device_bytes)
        row = s.HelloRow(kinds.index(kind), hello.pid, hello.host, hello.port, *device)
        rows[str(worker)] = row
    return kinds, rows


def _named(stages: Mapping[WorkerId, int]) -> dict[str, int]:
    return {str(worker): stage for worker, stage in sorted(stages.items())}


# --- what is read ---


def recall(run: Run, parts: CoordinatorParts, former: Former) -> None:
    """All but who is back. The epoch is one that nobody was ever told."""
    snapshot = former.snapshot
    run.lifecycle.regain(was_returning=snapshot.phase == "RETURNING")
    for name, row in snapshot.hellos.items():
        hello = _hello(name, row, snapshot.hello_kinds[row.kind])
        run.roster.enroll(parse_worker(name), hello)
        parts.losing.processes.came(parse_worker(name), row.pid)
    run.placement.recall(snapshot.epoch + 1, _parsed(snapshot.stages))
    run.membership.recall(_phases(snapshot))
    _recall_plan(run, snapshot)
    given = {name: (parse_worker(row.worker), row.stage) for name, row in snapshot.parts.items()}
    run.assignments.recall(given, snapshot.num_given, snapshot.fired)
    run.saved.recall(former.sealed, snapshot.rules)
    run.logs.recall(snapshot.log.num_histories, snapshot.log.began)
    if snapshot.log.limits:
        run.logs.choose(snapshot.log.boundaries, snapshot.log.limits)
    for took_s in snapshot.times.steps_s:
        run.times.note_step(took_s)
    run.times.note_stop(snapshot.times.stop_s)
    run.times.note_copy(snapshot.times.copy_s)
    for name, machine in snapshot.seats.items():
        run.machines.seat(parse_worker(name), machine)
    for worker in run.membership.all_in(WorkerPhase.STARTING, WorkerPhase.BUILDING):
        parts.joining.admission.waits(worker, former.at_s)
    _recall_parts(parts, former)
    # After all else: the events may be behind the journal.
    run.validations.recall(snapshot.validations, snapshot.validated)


def _recall_plan(run: Run, snapshot: s.RunSnapshot) -> None:
    cut, costs = snapshot.cut, snapshot.cut.costs
    rows = (costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s, costs.step_s)
    forward_s, input_s, weight_s, fused_s, step_s = map(tuple, rows)
    made = Costs(forward_s, input_s, weight_s, fused_s, step_s, costs.link_s)
    first = _steady(snapshot.first)
    made_of = Cut(tuple(cut.layers), made, cut.guessed, cut.reason, cut.in_flight)
    run.plan.make(made_of, first, run.first_stages)
    steady = first if snapshot.steady == snapshot.first else _steady(snapshot.steady)
    run.plan.replan(steady, _parsed(snapshot.planned_for))
    run.plan.begin_at(snapshot.steady_from)


def _recall_parts(parts: CoordinatorParts, former: Former) -> None:
    snapshot = former.snapshot
    parts.reports.take_over(former.next_step, former.at_s)
    parts.reports.checkpoints.recall(snapshot.compared_from)
    parts.reports.nonfinite.recall(NonfiniteCount(*snapshot.nonfinite))
    parts.joining.admission.recall(snapshot.joins_used)
    parts.coming_machines.take_over()
    for name in snapshot.hellos.keys() - set(snapshot.by_hand):
        parts.replacing.on_started(parse_worker(name), snapshot.hellos[name].pid)
    for name in snapshot.draining:
        parts.draining.recall(name, former.at_s)
    for name in snapshot.left_out:
        parts.replacing.leave_out(parse_worker(name))


def _phases(snapshot: s.RunSnapshot) -> dict[WorkerId, WorkerPhase]:
    """Who was on the way begins again; who was going back to a checkpoint stands ready for it."""
    found = {}
    for name, phase in snapshot.workers.items():
        known = WorkerPhase[phase]
        if known in _HAVE_SPOKEN and known is not WorkerPhase.MEMBER:
            goes_back = name in snapshot.rolling_back
            known = WorkerPhase.READY if goes_back else WorkerPhase.BUILDING
        found[parse_worker(name)] = known
    return found


def _steady(row: s.SteadyRow) -> Steady:
    return Steady(loads(row.schedule), row.period_s, row.reason)


def _hello(name: str, row: s.HelloRow, kind: s.HelloKind) -> messages.Hello:
    return messages.Hello(
        worker=name,
        pid=row.pid,
        fingerprint=kind.fingerprint,
        traits=kind.traits,
        num_layers=kind.num_layers,
        layer_hashes=kind.layer_hashes,
        cut=kind.cut,
        host=row.host,
        port=row.port,
        device_index=row.device_index,
        device_bytes=row.device_bytes,
    )


def _parsed(stages: Mapping[str, int]) -> dict[WorkerId, int]:
    return {parse_worker(name): stage for name, stage in stages.items()}
