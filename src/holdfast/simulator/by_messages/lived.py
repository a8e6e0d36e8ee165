"""Lives through a world message by message, and says what came of it as the intervals do."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.errors import ConfigError
from holdfast.observability import events as e
from holdfast.simulator.by_messages.scenario_of import deeds_of, machine_name, scenario_of
from holdfast.simulator.costs.measured_times import RecordedTimes
from holdfast.simulator.intervals.outcome import PolicyOutcome, Segment, TimeKind
from holdfast.simulator.messages.deeds import do
from holdfast.simulator.messages.virtual_run import VirtualRun
from holdfast.simulator.worlds.world import World, WorldKind

_START_LIMIT_S = 100_000.0
_PARTS = 100  # of the time, after each of which progress is told


def live_through(
    world: World,
    job: JobCosts,
    *,
    paces: Paces | None = None,
    measured: RecordedTimes | None = None,
    boot_s: float = 60.0,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> PolicyOutcome:
    """The world begins when training does."""
    paces = paces or Paces(job)
    run = VirtualRun(scenario_of(world, job, paces, measured, seed))
    for machine in set(range(world.machines)) - set(world.alive):
        run.agents[machine_name(machine)].is_alive = False  # it has not come yet
    start_s = _started(run)
    for deed in deeds_of(world, boot_s):
        run.time.at(start_s + deed.at, do, run, deed)
    for event in world.events:
        if event.kind in (WorldKind.SLOW, WorldKind.WELL):
            names = [machine_name(machine) for machine in event.machines]
            run.time.at(
                start_s + event.at_s, run.slowness.update, dict.fromkeys(names, event.factor)
            )
    for part in range(_PARTS):
        run.run(start_s + world.length_s * (part + 1) / _PARTS)
        progress((part + 1) / _PARTS)
        if run.is_over:
            break
    return _outcome(run, world, job, paces, start_s)


def _started(run: VirtualRun) -> float:
    def is_started() -> bool:
        return any(isinstance(event, e.RunStarted) for event in run.events)

    run.time.run(_START_LIMIT_S, lambda: run.is_over or is_started())
    if not is_started():
        raise ConfigError(f"the simulated run does not start: {run.failure}")
    return run.time.now_s


def _outcome(
    run: VirtualRun, world: World, job: JobCosts, paces: Paces, start_s: float
) -> PolicyOutcome:
    end_s = start_s + world.length_s
    seen = [event for event in run.events if event.at_s <= end_s]
    segments, mean_live = list(_segments(seen, world, job, start_s)), world.mean_alive()
    reached = _steps(seen)
    workers = world.workers_a_machine
    return PolicyOutcome(
        policy="holdfast",
        title="Holdfast, message by message",
        resolution="messages",
        length_s=world.length_s,
        samples=reached * job.samples_a_step,
        seconds=_seconds(seen, job, paces, world.length_s),
        segments=segments,
        num_changes=sum(isinstance(event, e.Recovered) for event in seen),
        worker_s=mean_live * workers * world.length_s,
        gpus_a_worker=job.gpus_a_worker,
        fault_free_rate=job.samples_a_step / paces.healthy_s,
        plain_rate=job.samples_a_step / paces.plain_s,
        mean_live=min(mean_live * workers, job.num_workers),
        num_workers=job.num_workers,
        reason="" if run.failure is None else str(run.failure),
    )


def _steps(seen: Sequence[e.Event]) -> int:
    """That count at the end."""
    reached = 0
    for event in seen:
        if isinstance(event, e.StepFinished):
            reached = event.step + 1
        elif isinstance(event, e.WentBack):
            reached = event.to_step
    return reached


def _seconds(
    seen: Sequence[e.Event], job: JobCosts, paces: Paces, length_s: float
) -> dict[TimeKind, float]:
    """Where the time went, by what the coordinator tells of its changes."""
    found = dict.fromkeys(TimeKind, 0.0)
    costs, stages = job.costs, job.shape.stages
    each_s = (sum(costs.forward_s) + sum(costs.fused_s)) / (2 * stages)
    for event in seen:
        if isinstance(event, e.Recovered):
            found[TimeKind.STALLED] += event.resumed_s - event.fault_s
            found[TimeKind.REDONE] += event.redone * each_s / max(event.members, 1)
        elif isinstance(event, e.WentBack):
            found[TimeKind.ROLLED_BACK] += event.thrown_away * paces.healthy_s
    found[TimeKind.EFFECTIVE] = max(length_s - sum(found.values()), 0.0)
    return found


def _segments(
    seen: Sequence[e.Event], world: World, job: JobCosts, start_s: float
) -> Iterator[Segment]:
    """From step to step."""
    ends_s = [start_s, *(event.at_s for event in seen if isinstance(event, e.StepFinished))]
    alive, changes = len(world.alive) * world.workers_a_machine, list(world.events)
    for before_s, after_s in pairwise(ends_s):
        while changes and changes[0].at_s <= before_s - start_s:
            event = changes.pop(0)
            sign = {WorldKind.LOSS: -1, WorldKind.RETURN: 1}.get(event.kind, 0)
            alive += sign * len(event.machines) * world.workers_a_machine
        if after_s > before_s:
            rate, kind = job.samples_a_step / (after_s - before_s), TimeKind.EFFECTIVE
            yield Segment(before_s - start_s, after_s - start_s, kind, rate, alive)
