"""From a job and a world to a run that can be simulated message by message."""

from math import isfinite

from holdfast.baselines.policies.catalogue import make_policy
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.rerouting import HoldfastConstants
from holdfast.errors import Argument, ConfigError
from holdfast.schedule.operation import Kind
from holdfast.simulator.costs.measured_times import RecordedTimes
from holdfast.simulator.messages.scenario import Deed, Scenario
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind

MOST_WORKERS = 64
_MANY_STEPS = 10_000_000  # the world ends before
_HOME = "c"  # the coordinator's machine, which does not fail
_OFTEN = 1_000_000


def scenario_of(
    world: World, job: JobCosts, paces: Paces, measured: RecordedTimes | None, seed: int
) -> Scenario:
    """``measured``: by a run, if there is one; what it has not is taken from the job's costs."""
    if world.num_workers > MOST_WORKERS:
        raise ConfigError(
            Argument("resolution", "messages"),
            f" with {world.num_workers:,} workers: expected at most {MOST_WORKERS}; take intervals "
            "for more",
        )
    times = job_times(job)
    return Scenario(
        seed=str(seed),
        shape=job.shape,
        steps=_MANY_STEPS,
        settings=_settings(world, job, paces),
        machines=(world.workers_a_machine,) * world.machines,
        home=_HOME,
        measured=RecordedTimes({**times.rows, **measured.rows} if measured else times.rows),
    )


def job_times(job: JobCosts) -> RecordedTimes:
    """Seconds of operations and links as the job has them; changes as they were measured once."""
    costs, usual = job.costs, HoldfastConstants()
    rows: dict[str, tuple[float, ...]] = {}
    for stage in range(job.shape.stages):
        kinds = (Kind.F, Kind.B, Kind.W, Kind.BW)
        tables = (costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s)
        for kind, table in zip(kinds, tables, strict=True):
            rows[f"{stage}{kind}"] = (table[stage],)
        rows[f"{stage}R"] = (costs.step_s[stage],)
    boundary_s = job.boundary_bytes / job.link_bytes_s if isfinite(job.link_bytes_s) else 0.0
    rows["link"] = (costs.link_s + boundary_s,)
    rows["change"] = (usual.stop_s + usual.stop_a_worker_s * job.num_workers,)
    rows["build"] = (job.copy_s,)
    rows["replay"] = (usual.rebuild_s,)
    return RecordedTimes(rows)


def _settings(world: World, job: JobCosts, paces: Paces) -> tuple[str, ...]:
    """The coordinator plans with the stages' mean: a device that is emulated has one for all."""
    stages, costs = job.shape.stages, job.costs
    rows = {"F": costs.forward_s, "B": costs.input_s, "W": costs.weight_s, "BW": costs.fused_s}
    each = ",".join(f"{kind}={1e6 * sum(row) / stages:.3f}us" for kind, row in rows.items())
    every = make_policy("holdfast", paces).saving(paces.healthy_s).every_steps
    return (
        f"device.emulate={each}",
        f"checkpoint.every_steps={every}",
        "checkpoint.at_end=false",
        f"schedule.memory={job.room}",
        *(["recovery.log=boundary"] if stages > 1 else []),
        f"workers.replace={_OFTEN}",
        f"workers.restarts={_OFTEN}",
        "workers.heartbeat_timeout_s=10",
        f"machines.start_with={len(world.alive)}",
        "machines.wait_s=1000000",
    )


def deeds_of(world: World, boot_s: float) -> tuple[Deed, ...]:
    """Seconds since training began. Changes of speed are no deeds."""
    found: list[Deed] = []
    for event in world.events:
        for machine in event.machines:
            found += _deeds(event, machine, boot_s, _lost_s(world, machine))
    return tuple(sorted(found, key=lambda deed: deed.at))


def _lost_s(world: World, machine: int) -> list[float]:
    losses = (event for event in world.events if event.kind is WorldKind.LOSS)
    return [event.at_s for event in losses if machine in event.machines]


def _deeds(event: WorldEvent, machine: int, boot_s: float, lost_s: list[float]) -> list[Deed]:
    """A machine that goes again before it has booted has never come."""
    name, here_s = machine_name(machine), event.at_s + boot_s
    if event.kind is WorldKind.LOSS:
        early_s = max(event.at_s - event.notice_s, 0.0)
        drain = [Deed(early_s, "drain", (name,))] if event.notice_s else []
        return [*drain, Deed(event.at_s, "dies", (name,))]
    if event.kind is WorldKind.RETURN and not any(event.at_s <= at <= here_s for at in lost_s):
        return [Deed(here_s, "comes", (name,))]
    return []


def machine_name(number: int) -> str:
    return f"m{number}"
