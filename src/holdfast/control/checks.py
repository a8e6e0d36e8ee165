"""What must fit before a run may start: the checkpoint to the job, the workers to each other."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import Argument, CheckpointError, ConfigError, ScheduleError
from holdfast.protocol import messages
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Lane, Schedule, loads
from holdfast.schedule.validity import check
from holdfast.storage.manifest import Checkpoint


class Accepted(NamedTuple):
    """What may be other than it was in the run that is resumed: the user has said so."""

    job: bool = False
    data: bool = False  # how many samples there are


NOTHING = Accepted()


def check_fits(checkpoint: Checkpoint, num_layers: int) -> None:
    if checkpoint.num_layers != num_layers:
        raise CheckpointError(
            f"checkpoint {checkpoint.directory} holds {checkpoint.num_layers} layers, the job has "
            f"{num_layers}; resume with the job that wrote it"
        )


def check_alike(fingerprints: Mapping[str, Mapping[str, str]], *, allow_mixed: bool) -> None:
    """Bits depend on threads, instruction set and libraries: refuse to mix them unaware."""
    first, *others = fingerprints
    for other in others:
        one, two = fingerprints[first], fingerprints[other]
        for key in _sorted(one, two):
            if one.get(key) != two.get(key) and not allow_mixed:
                switch = "device.mixed" if key == messages.DEVICE else "workers.allow_mixed"
                raise ConfigError(
                    f"workers {first} and {other} differ in {key}: {one.get(key)} and "
                    f"{two.get(key)}; results would not be exact. Make them alike, or accept it "
                    f"with {switch}=true"
                )


def check_same_job(traits: Mapping[str, Mapping[str, str]]) -> None:
    """Worker -> traits of its job: whoever has others would train something else."""
    first, *others = traits
    for other in others:
        one, two = traits[first], traits[other]
        for name in sorted(one.keys() | two.keys()):
            if one.get(name) != two.get(name):
                raise ConfigError(
                    f"workers {first} and {other} differ in {name}: {one.get(name)} and "
                    f"{two.get(name)}; all must train the same job on the same data. Put it back "
                    "as it was when the run began, or start a new run"
                )


def check_same_run(
    checkpoint: Checkpoint, hello: messages.Hello, config: RunConfig, accepted: Accepted
) -> None:
    """Job, data and machine of a run that is resumed. An old checkpoint says nothing of them."""
    origin, where = checkpoint.origin, f"the checkpoint {checkpoint.directory} was written with"
    for name, then, now in _differences(origin.traits, hello.traits):
        if name == messages.WEIGHTS:
            continue  # all that came of them is in the checkpoint
        is_data = name == messages.SAMPLES
        if not (accepted.data if is_data else accepted.job):
            raise CheckpointError(
                f"{name} is {now}, {where} {then}. Put it back as it was, or add ",
                Argument("changed_data" if is_data else "changed_job", True),
                ": the result is then another run's",
            )
    if config.gradients.mode != "exact" or config.workers.allow_mixed:
        return
    for name, then, now in _differences(origin.fingerprint, hello.fingerprint):
        if name == messages.DEVICE and config.device.mixed:
            continue
        raise CheckpointError(
            f"{name} is {now}, {where} {then}; the result would not be exact. Resume where it is "
            "the same, or accept it with workers.allow_mixed=true"
        )


def _differences(
    then: Mapping[str, str], now: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in _sorted(then, now) if then else ():
        if then.get(name) != now.get(name):
            yield name, then.get(name), now.get(name)


def _sorted(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The device first: settings of torch depend on it."""
    return sorted(one.keys() | other.keys(), key=lambda name: (name != messages.DEVICE, name))


def check_built_alike(built: Mapping[str, Sequence[str]]) -> None:
    """Worker -> a hash of each layer before the first step: replicas must begin equal."""
    first, *others = built
    for other in others:
        one, two = built[first], built[other]
        if len(one) != len(two):
            raise ConfigError(
                f"the job has {len(one)} layers on worker {first}, {len(two)} on worker {other}; "
                "it must build the same model everywhere"
            )
        for layer, (mine, theirs) in enumerate(zip(one, two, strict=True)):
            if mine != theirs:
                raise ConfigError(
                    f"layer {layer} differs between workers {first} and {other} before the first "
                    "step: the job must build the same layers everywhere. Seed all it draws at "
                    "random; torch, random and numpy are seeded from train.seed before job() runs"
                )


def read_schedule(config: RunConfig) -> Schedule | None:
    """The user's own lanes, if there are any; they must fit the shape and be able to run."""
    name = config.schedule.file
    if not name:
        return None
    try:
        schedule = loads(Path(name).read_text())
        check(schedule, config.schedule.memory or None)
    except (OSError, UnicodeDecodeError, ScheduleError) as why:
        raise ConfigError(f"schedule.file={name}: {why}") from why
    parallel = config.parallel
    wanted = Shape(parallel.pipelines, parallel.stages, parallel.microbatches)
    if schedule.shape != wanted:
        raise ConfigError(
            f"schedule.file={name}: is for {_words(schedule.shape)}; expected {_words(wanted)}, as "
            "set by parallel"
        )
    for worker, lane in schedule.lanes.items():
        _check_lane(name, wanted, worker, lane)
    return schedule


def _check_lane(name: str, shape: Shape, worker: WorkerId, lane: Lane) -> None:
    if worker.pipeline >= shape.pipelines or worker.stage >= shape.stages:
        last = WorkerId(shape.pipelines - 1, shape.last_stage)
        raise ConfigError(
            f"schedule.file={name}: there is no worker {worker}; expected 0.0 to {last}"
        )
    if len({op.stage for op in lane}) != 1:
        raise ConfigError(
            f"schedule.file={name}: the lane of worker {worker} has operations of several stages; "
            "expected one stage a worker"
        )


def _words(shape: Shape) -> str:
    return (
        f"{shape.pipelines} pipelines x {shape.stages} stages with {shape.microbatches} "
        "micro-batches"
    )
