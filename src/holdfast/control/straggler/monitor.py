"""Keeps the run's health true: what workers report goes to detection, what it finds is told.

Orders benchmarks of suspects. What is done about a slow worker or link is decided elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.state.run import Run
from holdfast.control.state.workers.known_health import HEALTHY
from holdfast.detection.diagnosis import (
    Cause,
    Diagnosis,
    Health,
    Link,
    Over,
    Suspicion,
    link_of,
)
from holdfast.detection.live.probe_rounds import rounds
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.watcher import Watcher
from holdfast.detection.observation import OpTime, StepObservation, Transfer
from holdfast.observability import events
from holdfast.observability.text import count
from holdfast.protocol import messages
from holdfast.protocol.records import LinkProbe
from holdfast.protocol.report_limits import near, num_turns
from holdfast.schedule.operation import parse_op

_NUM_BASELINES = 4  # more benchmarks of a worker that is new: the shortest counts
_WARM_STEPS = 1  # before a worker's benchmark of its own: it would measure compilers
_HERE = "this machine"
_MOST_ALL_LINKS = 32  # members; of more, each measures the links to its neighbours


def watch_settings(num_members: int) -> WatchSettings:
    """What a link was asked is told in the next turn of its ends."""
    usual = WatchSettings()
    return replace(usual, num_patience_steps=max(usual.num_patience_steps, num_turns(num_members)))


class StragglerMonitor:
    def __init__(self, run: Run) -> None:
        self._run = run
        settings = watch_settings(run.config.num_workers)
        self._watcher = Watcher({}, settings) if run.config.mitigation.watches else None
        self._known: dict[WorkerId, int] = {}  # and its process
        self._unmeasured: dict[WorkerId, int] = {}  # benchmarks that are still to be ordered

    def stop(self) -> None:
        """Nothing is looked for any more, and nobody counts as slow."""
        self._watcher = None
        self._run.health.note(HEALTHY)

    def on_report(self, report: messages.StepReport, at_s: float) -> None:
        if self._watcher is None or (not report.operations and self._run.is_large):
            return  # in this step others tell of theirs
        worker = parse_worker(report.worker)
        if worker not in self._run.stages:
            return
        stage = self._run.stages[worker]
        if any(parse_op(one.op).stage != stage for one in report.operations[:1]):
            return  # of the stage that it held before
        ops, transfers = _op_times(report), _transfers(report)
        self._watcher.observe(StepObservation(worker, stage, report.step, ops, transfers, at_s))

    def on_probed(self, probed: messages.Probed) -> None:
        if self._watcher is not None:
            worker = parse_worker(probed.worker)
            self._watcher.probed(worker, probed.step, probed.wall_s, probed.cpu_s)

    def concluded(self, step: int, at_s: float) -> list[Effect]:
        """All members have reported ``step``."""
        if self._watcher is None:
            return []
        effects = self._follow_members(self._watcher, step)
        for finding in self._watcher.conclude(step):
            match finding:
                case Suspicion():
                    effects += self._probe(finding, step)
                case Diagnosis():
                    effects.append(Emit(_diagnosed(self._in_context(finding), step, at_s)))
                case Over():
                    effects.append(Emit(_over(finding, step, at_s)))
        self._run.health.note(self._beside_each_other(self._watcher.health()))
        return effects

    def _in_context(self, found: Diagnosis) -> Diagnosis:
        """Where workers outnumber the cores, whoever is short of CPU time is not to blame."""
        hosts = [self._run.hellos[worker].host for worker in self._run.stages]
        num_cores = self._run.settings.num_cores
        is_crowded = len(set(hosts)) == 1 and len(hosts) > num_cores > 0
        if not found.hint or not is_crowded:
            return found
        shared = f"{len(hosts)} workers share {count(num_cores, 'core')}"
        return replace(found, hint=shared)

    def _beside_each_other(self, health: Health) -> Health:
        """If all are slow, nobody is the slow one: speeds count next to the fastest member's."""
        speeds = {worker: health.speeds.get(worker, 1.0) for worker in self._run.stages}
        fastest = max(speeds.values())
        return Health({w: s / fastest for w, s in speeds.items() if s < fastest}, health.links)

    def _follow_members(self, watcher: Watcher, step: int) -> list[Effect]:
        """Whoever changes its stage is away for a while, but what is known of it stays true."""
        run = self._run
        live = {worker: run.hellos[worker].pid for worker in run.membership.live}
        for worker, pid in list(self._known.items()):
            if live.get(worker) != pid:
                watcher.lost(worker)
                del self._known[worker]
        new = sorted(run.stages.keys() - self._known.keys())
        for worker in new:
            watcher.joined(worker, run.hellos[worker].host or _HERE)
            self._known[worker] = run.hellos[worker].pid
        links = links_of(new, run.stages)
        self._unmeasured |= dict.fromkeys(new, _NUM_BASELINES)
        again = [worker for worker, left in self._unmeasured.items() if left and worker not in new]
        for worker in again:
            self._unmeasured[worker] -= 1
        first = Suspicion(tuple(new), tuple(sorted(links)))
        # What is normal for each.
        return self._probe(first, step + _WARM_STEPS) + self._probe(
            Suspicion(tuple(again), ()), step
        )

    def _probe(self, suspicion: Suspicion, step: int) -> list[Effect]:
        """Benchmarks of all suspects at once; links in rounds, of one step each."""
        members = self._run.stages.keys()  # others are away, on the way to another stage
        turns = rounds(link for link in suspicion.links if members >= set(link))
        sends: dict[WorkerId, list[LinkProbe]] = {}
        for number, pairs in enumerate(turns):
            for one, other in pairs:  # both ways
                sends.setdefault(one, []).append(LinkProbe(str(other), number))
                sends.setdefault(other, []).append(LinkProbe(str(one), number))
        concerned = sorted({*suspicion.workers, *sends} & members)
        return [
            Send(
                worker,
                messages.Probe(
                    step=step + 1,
                    compute=worker in suspicion.workers,
                    links=sends.get(worker, []),
                ),
            )
            for worker in concerned
        ]


def links_of(new: Iterable[WorkerId], stages: Mapping[WorkerId, int]) -> set[Link]:
    """That are measured when somebody is new: all of them, or those to neighbours."""
    if len(stages) <= _MOST_ALL_LINKS:
        return {link_of(one, other) for one in new for other in stages if one != other}
    holders: dict[int, list[WorkerId]] = {}
    for worker, stage in stages.items():
        holders.setdefault(stage, []).append(worker)
    found: set[Link] = set()
    for one in new:
        stage = stages[one]
        twins = [other for other in holders[stage] if other != one]
        beside = [near(one, holders.get(by, ()))[:1] for by in (stage - 1, stage + 1)]
        found |= {link_of(one, other) for some in (near(one, twins), *beside) for other in some}
    return found


def _op_times(report: messages.StepReport) -> tuple[OpTime, ...]:
    found = []
    for text, start_s, end_s, cpu_s, elements in report.operations:
        op = parse_op(text)
        if op.microbatch is not None:  # R has none
            times = (start_s, end_s, cpu_s, elements)
            found.append(OpTime(op.kind.value, op.microbatch, *times))
    return tuple(found)


def _transfers(report: messages.StepReport) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(parse_worker(source), purpose, number, num_bytes, moved_s)
        for source, purpose, number, num_bytes, moved_s in report.transfers
    )


def _diagnosed(found: Diagnosis, step: int, at_s: float) -> events.Diagnosed:
    return events.Diagnosed(
        at_s=at_s,
        step=step,
        cause=found.cause.value,
        subject=found.subject,
        factor=found.factor,
        excess_s=found.excess_s if found.cause is Cause.LINK else 0.0,
        since=found.since,
        confidence=found.confidence,
        evidence=found.evidence,
        hint=found.hint,
    )


def _over(over: Over, step: int, at_s: float) -> events.SlownessOver:
    return events.SlownessOver(
        at_s=at_s, step=step, cause=over.cause.value, subject=over.subject, since=over.since
    )
