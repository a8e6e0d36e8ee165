"""Train a job, or go on with a run."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from holdfast.api.job_source import JobLike, job_source
from holdfast.api.live_run import LiveRun
from holdfast.api.record import Result
from holdfast.api.resuming import check_continues, job_to_resume
from holdfast.api.settings import ConfigLike, armed_faults, make_config
from holdfast.api.taking_over import heir_at, run_left_alive
from holdfast.auth.secret import given_secret
from holdfast.baselines.registry import policies_of
from holdfast.callbacks.callback import Callback, RunSoFar
from holdfast.callbacks.calling import Calls, check_callbacks
from holdfast.config import RunConfig
from holdfast.control.checks import Accepted
from holdfast.control.io.launcher import RunRequest
from holdfast.control.state.settings import resume_call
from holdfast.errors import Argument, CallbackError, ConfigError
from holdfast.faults.fault import Fault
from holdfast.host import instruction_set
from holdfast.job_file import stop_if_loading
from holdfast.job_reference import JobSource, Reference, found_here
from holdfast.launch.clusters import Say
from holdfast.launch.kinds import open_cluster
from holdfast.launch.starting import ClusterAgents
from holdfast.observability.events import Event
from holdfast.storage.contents import Checkpoint
from holdfast.storage.stores import find
from holdfast.weights.place import as_setting


class MoreOptions(TypedDict, total=False):
    """What is given less often."""

    microbatches: int | None
    """Micro-batches in one step, over all pipelines."""
    seed: int | None
    """Of parameters, random numbers and data order."""
    chaos: str | None
    """Random faults: ``"seed=1,rate=0.05"``."""
    secret_file: str | Path | None
    """The run's secret; None: from the environment, or a new one in the run directory."""
    resume: str | Path | None
    """Go on from the newest checkpoint of a run, or from this checkpoint: a directory, or an
    address such as ``"s3://bucket/run"``."""
    args: Sequence[str] | None
    """For the job: its function is called with them, as one list. None: those of the run that is
    resumed, or none."""
    weights: str | Path | None
    """What parameters start from: a safetensors or ``.pt`` file, a folder of Hugging Face, a run or
    checkpoint of Holdfast. None: as the job makes them."""
    changed_job: bool
    """With ``resume``: accept that the job's file, its arguments, or what it imports, are not as
    they were."""
    changed_data: bool
    """With ``resume``: accept that there are more or fewer samples."""
    ticket: str | Path | None
    """With ``machines.count``: where the ticket for agents is written; None: beside the run
    directory, ``RUN_DIR.ticket``."""
    cluster: str | None
    """With ``machines.count``: what starts the agents: ``"ssh:hosts.toml"``, ``"slurm"``,
    ``"ray"``; None: somebody else does."""


class RunOptions(MoreOptions, total=False):
    """What :func:`start` and :func:`resume` take beside the job."""

    pipelines: int | None
    """Copies of the pipeline (data parallel)."""
    stages: int | None
    """Parts the layers are cut into (pipeline parallel)."""
    steps: int | None
    """Optimizer steps of the whole run."""
    config: ConfigLike
    """All other settings."""
    run_dir: str | Path | None
    """Where results go; None: ``runs/JOB-TIME``, or where the run is that is resumed."""
    faults: Sequence[str | Fault]
    """To be injected: ``"kill 1.0 @ 5"``."""


def train(
    job: JobLike,
    *,
    pipelines: int | None = None,
    stages: int | None = None,
    steps: int | None = None,
    config: ConfigLike = None,
    run_dir: str | Path | None = None,
    faults: Sequence[str | Fault] = (),
    on_event: Callable[[Event], object] | None = None,
    callbacks: Sequence[Callback] = (),
    **more: Unpack[MoreOptions],
) -> Result:
    """Train ``job`` to the end; ``more``: see :class:`MoreOptions`.

    ``job`` is a path (``"job.py"``, ``"job.py:make"``), ``"module:function"`` or a function that
    returns a :class:`Job`. Workers are processes of their own: of a function they load the file
    that defines it, so it must be at the top level of a script or module. The part of a script
    before the call of ``train`` runs in each of them; it needs no ``if __name__ == "__main__"``.
    They import what lies beside the file, or is on ``PYTHONPATH``. A function of a notebook has no
    file: write it to one, or set ``workers.kind`` to ``threads``, where functions of any kind are
    called in this process.

    ``on_event`` is called in this thread, for one event after the other, and so are ``callbacks``.
    If one raises, the run ends after its step, with a checkpoint, and then the exception is raised
    (of callbacks: if ``callbacks.on_error`` says so). Ctrl-C is treated in the same way; no signal
    handler is set, so that any thread may call this. While a run is under way, new files of this
    process are for its user only (umask 077).

    All else that goes wrong is a :class:`HoldfastError`, after everything was stopped.

    >>> import holdfast as hf, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = hf.train(
    ...         EXAMPLE, stages=2, steps=3, run_dir=f"{folder}/run",
    ...         config={"workers.kind": "threads"},
    ...     )
    ...     len(result.losses), type(result.model()).__name__
    (3, 'TrainedLayers')
    """
    options: RunOptions = {
        **more,
        "pipelines": pipelines,
        "stages": stages,
        "steps": steps,
        "config": config,
        "run_dir": run_dir,
        "faults": faults,
    }
    return _followed(job, options, on_event, callbacks)


def resume(
    run_dir: str | Path,
    /,
    *,
    job: JobLike | None = None,
    on_event: Callable[[Event], object] | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RunOptions],
) -> Result:
    """Go on with a run from its newest checkpoint, with its job and settings, to its last step.

    ``run_dir`` may name a checkpoint as well, or an address (``"s3://bucket/run"``). What is given
    in ``options`` replaces the run's own settings; what the bits depend on (seed, micro-batches)
    must stay.
    """
    options["resume"] = run_dir
    return _followed(job, options, on_event, callbacks)


def start(job: JobLike | None, **options: Unpack[RunOptions]) -> LiveRun:
    """As :func:`train`, but returns at once: ``with hf.start(...) as run: for event in run: ...``.

    ``job`` may be None if ``resume`` is given. See :class:`LiveRun`.
    """
    run = prepare(job, warn=_warn, **options)
    run.begin()
    return run


def _followed(
    job: JobLike | None,
    options: RunOptions,
    on_event: Callable[[Event], object] | None,
    callbacks: Sequence[Callback],
) -> Result:
    check_callbacks(callbacks)
    run = prepare(job, warn=_warn, **options)
    if callbacks:
        run.spare_unheard()
    run.begin()
    with run:
        if on_event is None and not callbacks:
            return run.result()
        so_far = RunSoFar(run.run_dir, run.config, partial(_weights_at, run.job))
        calls = Calls(callbacks, so_far, run.config.callbacks.on_error, _warn)
        try:
            for event in run:
                if on_event is not None:
                    on_event(event)
                calls.call(event)
        except BaseException:
            with suppress(CallbackError):  # the first that was raised counts
                calls.end()
            raise
        calls.end()
        return run.result()


def _weights_at(job: str, place: str) -> Mapping[str, Any]:
    from holdfast.api.model import weights_of

    return weights_of(find(place), job)


def prepare(
    job: JobLike | None,
    *,
    warn: Callable[[str], None],
    join_with: Callable[[Path, str], str] = lambda run_dir, certificate: "",
    resume_with: Callable[[str], str] = resume_call,
    show: Callable[[str], None] | None = None,
    **options: Unpack[RunOptions],
) -> LiveRun:
    """A run that has yet to begin. ConfigError: it cannot.

    ``warn``, ``join_with`` and ``resume_with`` are words of the command line. ``show`` takes the
    lines of agents that a cluster runs; None: as warnings.
    """
    stop_if_loading()
    instruction_set.prepare(warn)
    place, secret_file = options.get("resume"), options.get("secret_file")
    secret = given_secret(str(secret_file) if secret_file else None, os.environ)
    alive = None if place is None else _left_alive(place, secret, options, warn)
    if alive is not None:
        return LiveRun(replace(alive, join_with=join_with, resume_with=resume_with), warn)
    checkpoint = None if place is None else find(place)
    config = make_config(options.get("config"), _own_settings(options), checkpoint)
    source = _source(job, checkpoint, config, options)
    if config.job.weights and checkpoint is None:
        config = _with_weights_placed(config, source)
    first_step = 0 if checkpoint is None else checkpoint.step
    faults = armed_faults(options.get("faults", ()), options.get("chaos"), config, first_step)
    run_dir = _run_dir(options.get("run_dir"), source, checkpoint)
    request = RunRequest(
        config=config,
        policies=policies_of(config),
        job=source,
        run_dir=run_dir,
        resume=checkpoint,
        faults=faults,
        secret=secret,
        join_with=join_with,
        resume_with=resume_with,
        accepted=Accepted(
            job=options.get("changed_job", False), data=options.get("changed_data", False)
        ),
        ticket=_ticket(options.get("ticket"), config, run_dir),
    )
    return LiveRun(request, warn, _agents(options.get("cluster"), request, warn, show or warn))


def _left_alive(
    place: str | Path, secret: bytes | None, options: RunOptions, warn: Callable[[str], None]
) -> RunRequest | None:
    heir = heir_at(place, options.get("config"), secret, options.get("ticket"))
    return None if heir is None else run_left_alive(heir, warn)


def _agents(
    cluster: str | None, request: RunRequest, warn: Callable[[str], None], show: Say
) -> ClusterAgents | None:
    """None: somebody else starts them."""
    machines = request.config.machines
    if cluster is None:
        return None
    if request.ticket is None:
        raise ConfigError(
            Argument("cluster", cluster), ": expected with machines.count above 0 only"
        )
    return ClusterAgents(
        open_cluster(cluster, show),
        request.ticket,
        machines=machines.count,
        needed=machines.needed,
        complain=warn,
    )


def _own_settings(options: RunOptions) -> dict[str, Any]:
    """Those that have an argument of their own; None: not given."""
    args, weights = options.get("args"), options.get("weights")
    return {
        "weights": None if weights is None else str(weights),
        "args": None if args is None else list(args),
        "pipelines": options.get("pipelines"),
        "stages": options.get("stages"),
        "microbatches": options.get("microbatches"),
        "steps": options.get("steps"),
        "seed": options.get("seed"),
    }


def _source(
    job: JobLike | None, checkpoint: Checkpoint | None, config: RunConfig, options: RunOptions
) -> JobSource:
    in_threads = config.workers.kind == "threads"
    if checkpoint is None:
        if job is None:
            raise ConfigError("no job file: give one as ", Argument("job"))
        return job_source(job, in_threads=in_threads)
    may_differ = options.get("changed_job", False)
    source = job_to_resume(job, checkpoint, may_differ=may_differ, in_threads=in_threads)
    check_continues(checkpoint, config, may_differ=may_differ)
    return source


def _with_weights_placed(config: RunConfig, source: JobSource) -> RunConfig:
    is_function = found_here(source.reference) is not None
    root = None if is_function else Reference.parse(source.reference).root
    is_here = config.machines.count == 0
    placed = as_setting(config.job.weights, root, is_here=is_here)
    return replace(config, job=replace(config.job, weights=placed))


def _run_dir(given: str | Path | None, job: JobSource, resume: Checkpoint | None) -> Path:
    if given is not None:
        return Path(given)
    if resume is not None and resume.run_dir is not None:
        return resume.run_dir
    return Path("runs") / f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _ticket(given: str | Path | None, config: RunConfig, run_dir: Path) -> Path | None:
    """None: nobody comes from another machine."""
    if config.machines.count:
        return Path(given or run_dir.with_name(f"{run_dir.name}.ticket"))
    if given is not None:
        raise ConfigError(Argument("ticket", given), ": expected with machines.count above 0 only")
    return None


def _warn(line: str) -> None:
    logging.getLogger("holdfast").warning("%s", line)
