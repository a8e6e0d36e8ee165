"""The cases of ``simulate_real`` by intervals: a world with the same faults, at the same steps."""

from dataclasses import replace
from math import inf

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.policy import Saving
from holdfast.baselines.policies.rerouting import HoldfastConstants, HoldfastPolicy
from holdfast.cluster import parse_worker
from holdfast.faults.fault import Fault, FaultKind, parse_fault
from holdfast.simulator.costs.measured_times import RecordedTimes
from holdfast.simulator.intervals.engine import simulate
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind, in_order

_LENGTH_S = 3600.0
_WITHIN = 0.5  # of a step: a fault comes when about so much of it is done
_REPLACED_S = 0.5  # a lost worker is started again after so long: the others recover first
_STEPS_TO_JOIN = 1.5  # it gets the state when a step ends, and joins after the next one


class _SavingHoldfast(HoldfastPolicy):
    """With the checkpoints of the run, which cost nothing."""

    every = 0

    def saving(self, period_s: float) -> Saving:
        return Saving(self.every, 0.0)


def in_intervals(
    job: JobCosts,
    times: RecordedTimes,
    faults: tuple[str, ...],
    steps: int,
    *,
    replaces: bool,
    saves_every: int,
    calm_s: float,
) -> float:
    """Steps a second from the end of the first step to that of the last.

    ``calm_s``: of a step in the costs run; over what is planned it makes ``over_plan``.
    """
    paces = Paces(job)
    constants = HoldfastConstants(
        detect_s=times.usual_s("death"),
        stop_s=times.usual_s("change"),
        stop_a_worker_s=0.0,
        over_plan=calm_s / paces.healthy_s,
        rebuild_s=times.usual_s("build") + max(times.usual_s("start"), times.usual_s("replay")),
        replay_over_model=1.0,
    )

    def lived(world: World) -> PolicyOutcome:
        policy = _SavingHoldfast(job, paces, constants)
        policy.every = saves_every
        return simulate(world, policy, boot_s=0.0)

    degraded_s = calm_s * job.shape.pipelines / (job.shape.pipelines - 1)
    started_s = _REPLACED_S + times.usual_s("start") + times.usual_s("build")
    back_s = started_s + _STEPS_TO_JOIN * degraded_s
    found = [parse_fault(text) for text in faults]
    events = _together([_event(fault, job, calm_s) for fault in found])
    if replaces:
        events += [
            WorldEvent(one.at_s + back_s, WorldKind.RETURN, one.machines)
            for one in events
            if one.kind is WorldKind.LOSS
        ]
    for fault in found:
        if fault.kind is FaultKind.SLOW:
            events += _end_of(fault, job, lived(_world(job, events)))
    outcome = lived(_world(job, events))
    return (steps - 1) / (_reached_s(outcome, job, steps) - _reached_s(outcome, job, 1))


def _world(job: JobCosts, events: list[WorldEvent]) -> World:
    machines = job.num_workers
    return World("a case", machines, 1, _LENGTH_S, tuple(range(machines)), in_order(events))


def _event(fault: Fault, job: JobCosts, step_s: float) -> WorldEvent:
    machine = _machine(fault, job)
    if fault.kind is FaultKind.SLOW:
        factor = 1.0 if fault.lasting is None else fault.lasting.factor
        return WorldEvent(fault.step * step_s, WorldKind.SLOW, (machine,), factor=factor)
    at_s = (fault.step + _WITHIN) * step_s
    return WorldEvent(at_s, WorldKind.LOSS, (machine,))


def _together(events: list[WorldEvent]) -> list[WorldEvent]:
    """What happens at one moment is one event."""
    times_s = sorted({event.at_s for event in events})
    groups = [[event for event in events if event.at_s == at_s] for at_s in times_s]
    return [
        replace(group[0], machines=tuple(sorted(m for event in group for m in event.machines)))
        for group in groups
    ]


def _end_of(fault: Fault, job: JobCosts, slow_for_good: PolicyOutcome) -> list[WorldEvent]:
    if fault.lasting is None or fault.lasting.last_step is None:
        return []
    at_s = _reached_s(slow_for_good, job, fault.lasting.last_step + 1)
    return [WorldEvent(at_s, WorldKind.WELL, (_machine(fault, job),))]


def _machine(fault: Fault, job: JobCosts) -> int:
    worker = parse_worker(str(fault.worker))
    return worker.pipeline * job.shape.stages + worker.stage


def _reached_s(outcome: PolicyOutcome, job: JobCosts, steps: int) -> float:
    """When so many steps were done."""
    left = float(steps)
    for segment in outcome.segments:
        done = segment.rate / job.samples_a_step * (segment.end_s - segment.start_s)
        if done >= left:
            return segment.start_s + left / done * (segment.end_s - segment.start_s)
        left -= done
    return inf
