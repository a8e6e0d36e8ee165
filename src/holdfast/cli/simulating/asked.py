"""What the words of ``holdfast simulate`` ask for, as a world and a job."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

from holdfast.baselines.policies.catalogue import BY_NAME, policy_named
from holdfast.baselines.policies.constants import TINY
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.cli.plan_problem import parse_costs
from holdfast.errors import ConfigError
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.schedule.operation import Shape
from holdfast.simulator.costs.from_run import run_costs
from holdfast.simulator.costs.presets import preset
from holdfast.simulator.costs.transformer import Hardware, transformer_costs
from holdfast.simulator.worlds.durations import duration_text, parse_duration_s
from holdfast.simulator.worlds.files import PACKAGED, packaged_trace, read_world
from holdfast.simulator.worlds.generate import Failures, generated
from holdfast.simulator.worlds.slowness import with_slowness
from holdfast.simulator.worlds.world import MOST_DAYS, MOST_MACHINES, World, scaled

_DAY_S = 86400.0
_SMALL_STAGES, _STAGES = 4, 8
_MOST = 1e20
MOST_SEED = 10**12


def asked_policies(text: str | None) -> list[str]:
    names = list(BY_NAME) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        policy_named(name)
    if len(set(names)) != len(names):
        raise ConfigError(f"--policies {text}: expected each policy once")
    return names


def asked_job(args: argparse.Namespace) -> JobCosts:
    given = [name for name in ("model", "from_run", "costs") if getattr(args, name) is not None]
    if len(given) > 1:
        raise ConfigError("--model, --from and --costs: expected one of them")
    if args.from_run is not None:
        return _of_run(args)
    stages = args.stages or _default_stages(args)
    pipelines = args.pipelines or _default_pipelines(args, stages)
    each = args.microbatches or 2 * stages
    if args.costs is None:
        return _of_model(args, pipelines, stages, each)
    if not args.costs.strip():
        raise ConfigError("--costs '': expected seconds, e.g. F=1,B=1,W=1")
    shape, costs = Shape(pipelines, stages, pipelines * each), parse_costs(args.costs, stages)
    return JobCosts(name="a job", shape=shape, costs=costs)


def other_layouts(args: argparse.Namespace, job: JobCosts) -> Callable[[int, int], JobCosts]:
    """From pipelines and stages to the job laid out so, with as many samples a step."""
    if args.from_run is not None or args.costs is not None:
        return job.laid_out

    def make(pipelines: int, stages: int) -> JobCosts:
        each = -(-job.shape.microbatches // pipelines)
        made = _of_model(args, pipelines, stages, each)
        return replace(made, samples_a_microbatch=job.samples_a_step / (each * pipelines))

    return make


def _of_model(args: argparse.Namespace, pipelines: int, stages: int, each: int) -> JobCosts:
    model, hardware = preset("6.7b" if args.model is None else args.model), _hardware(args)
    return transformer_costs(model, hardware, pipelines=pipelines, stages=stages, microbatches=each)


def asked_world(args: argparse.Namespace, num_workers: int) -> World:
    if args.trace is not None and args.mtbf is not None:
        raise ConfigError("--trace and --mtbf: expected one of them")
    each = args.workers_a_machine
    if each < 1 or num_workers % each:
        raise ConfigError(
            f"--workers-a-machine {each}: expected a divisor of the job's {num_workers} workers"
        )
    machines = args.machines or num_workers // each
    if not machines * each >= num_workers:
        raise ConfigError(
            f"--machines {machines} with {each} workers each: expected room for the job's "
            f"{num_workers} workers"
        )
    if not 0 <= args.seed <= MOST_SEED:
        raise ConfigError(f"--seed {args.seed}: expected 0 to {MOST_SEED:,}")
    world = _traced(args, machines, each) if args.trace else _drawn(args, machines, each)
    return with_slowness(world, args.seed) if args.slow else world


def _length_s(args: argparse.Namespace) -> float | None:
    if args.days is None:
        return None
    if not 0 < args.days <= MOST_DAYS:
        raise ConfigError(
            f"--days {args.days}: expected a number above 0 and at most {MOST_DAYS:,}"
        )
    return float(args.days) * _DAY_S


def _traced(args: argparse.Namespace, machines: int, each: int) -> World:
    def read(seed: int) -> World:
        if args.trace in PACKAGED:
            return packaged_trace(args.trace, seed)
        return read_world(_text(args.trace), args.trace, seed)

    world = read(args.seed)
    if args.seed and not args.slow and world == read(args.seed + 1):
        raise ConfigError(
            f"--seed {args.seed} has no effect here: {args.trace} names the machines that go; "
            "expected it with --slow, or with a trace of counts"
        )
    world = scaled(world, machines)
    length_s = _length_s(args) or world.length_s
    cut = world.cut_to(length_s)
    return World(cut.name, machines, each, length_s, cut.alive, cut.events)


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(
            f"--trace {name}: cannot be read: expected one of {', '.join(PACKAGED)}, or a CSV file"
        ) from why


def _drawn(args: argparse.Namespace, machines: int, each: int) -> World:
    every, length_s = args.maintenance, _length_s(args) or _DAY_S
    failures = Failures(
        kind=args.failures,
        mtbf_s=inf if args.mtbf is None else parse_duration_s("--mtbf", args.mtbf),
        repair_s=parse_duration_s("--repair", args.repair, zero=True),
        notice_s=parse_duration_s("--notice", args.notice, zero=True),
        rack=args.rack,
        maintenance_every_s=inf if every is None else parse_duration_s("--maintenance", every),
    )
    if inf > failures.maintenance_every_s >= length_s:
        raise ConfigError(
            f"--maintenance {every} has no effect here: the run lasts {duration_text(length_s)}; "
            "expected more --days, or maintenance more often"
        )
    return generated(
        failures,
        machines=machines,
        length_s=length_s,
        seed=args.seed,
        workers_a_machine=each,
    )


def _of_run(args: argparse.Namespace) -> JobCosts:
    events = args.from_run / EVENTS_FILE
    if not events.is_file():
        raise ConfigError(
            f"--from {args.from_run}: holds no {EVENTS_FILE}: expected a run's folder"
        )
    job = run_costs(str(args.from_run), read_events(events))
    if args.pipelines or args.stages:
        return job.laid_out(args.pipelines or job.shape.pipelines, args.stages or job.shape.stages)
    return job


def require_numbers(args: argparse.Namespace) -> None:
    """Before anything is made of them."""
    for name, least in (("flops", TINY), ("gpu_memory", TINY), ("link", TINY), ("price", 0.0)):
        value = getattr(args, name)
        if value is not None and not least <= value <= _MOST:
            words = "0 or more" if not least else "above 0"
            raise ConfigError(
                f"--{name.replace('_', '-')} {value}: expected a number {words}, at most {_MOST:g}"
            )
    if args.utilisation is not None and not TINY <= args.utilisation <= 1:
        raise ConfigError(
            f"--utilisation {args.utilisation}: expected a number above 0 and at most 1"
        )
    for name in ("pipelines", "stages", "microbatches", "machines", "workers_a_machine", "rack"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= MOST_MACHINES:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} {value}: expected at least 1 and at most {MOST_MACHINES:,}"
            )
    workers = (args.pipelines or 1) * (args.stages or 1)
    if workers > MOST_MACHINES:
        raise ConfigError(
            f"--pipelines {args.pipelines} --stages {args.stages}: {workers:,} workers: expected "
            f"at most {MOST_MACHINES:,}"
        )


def _hardware(args: argparse.Namespace) -> Hardware:
    usual = Hardware()
    return Hardware(
        flops=args.flops if args.flops is not None else usual.flops,
        utilisation=args.utilisation if args.utilisation is not None else usual.utilisation,
        memory_bytes=args.gpu_memory * 1e9 if args.gpu_memory is not None else usual.memory_bytes,
        link_bytes_s=args.link * 1e9 if args.link is not None else usual.link_bytes_s,
    )


def _default_stages(args: argparse.Namespace) -> int:
    machines = args.machines * args.workers_a_machine if args.machines else None
    wanted = _SMALL_STAGES if (args.model or "") in ("350m", "bert-large") else _STAGES
    return min(wanted, machines) if machines else wanted


def _default_pipelines(args: argparse.Namespace, stages: int) -> int:
    if not args.machines:
        raise ConfigError(
            "--pipelines or --machines: expected one of them, to know how many workers"
        )
    workers = args.machines * args.workers_a_machine
    if workers < stages:
        raise ConfigError(f"--stages {stages}: expected at most the {workers} workers there are")
    return int(workers // stages)
