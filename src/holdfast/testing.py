"""For tests of one's own jobs: train in threads of this process, kill at a point, compare.

A run of a small job takes a few seconds. Threads are not killed as processes are: an injected
death closes all that the worker has open and ends it there; what the others do is the same.
"""

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.api.job_source import JobLike
from holdfast.api.model import all_tensors
from holdfast.api.record import Result, RunRecord
from holdfast.api.settings import make_config
from holdfast.api.training import train
from holdfast.faults.fault import Fault


def train_in_threads(
    job: JobLike,
    *,
    pipelines: int = 1,
    stages: int = 1,
    steps: int = 4,
    faults: Sequence[str | Fault] = (),
    config: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
) -> Result:
    """As :func:`holdfast.train`, with workers that are threads of this process.

    Functions of any kind will do as a job. Without ``run_dir`` the run is kept in a temporary
    directory, as long as the result is.

    >>> result = train_in_threads(EXAMPLE, stages=2, steps=3)
    >>> len(result.losses)
    3
    """
    settings = make_config({**(config or {}), "workers.kind": "threads"}).to_dict()
    settings["parallel"].pop("microbatches")
    if config and "parallel.microbatches" in config:
        settings["parallel"]["microbatches"] = config["parallel.microbatches"]
    with ExitStack() as stack:
        if run_dir is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-"))
            run_dir = Path(folder) / "run"
        result = train(
            job,
            pipelines=pipelines,
            stages=stages,
            steps=steps,
            config=settings,
            run_dir=run_dir,
            faults=faults,
        )
        weakref.finalize(result, stack.pop_all().close)
    return result


def assert_survives(
    job: JobLike,
    *,
    kill: str | Sequence[str],
    pipelines: int = 2,
    stages: int = 2,
    steps: int = 4,
    config: Mapping[str, Any] | None = None,
) -> Result:
    """Train with workers killed, and again undisturbed; the results must be the same, bit for bit.

    ``kill`` says who and where: ``"1.0 @ 2.B1"`` is worker 1.0 in step 2, before its second
    backward (:class:`holdfast.Fault` has all points).

    >>> survived = assert_survives(EXAMPLE, kill="1.0 @ 2.B1", steps=3)
    >>> survived.summary.num_lost
    1
    """
    places = [kill] if isinstance(kill, str) else kill
    faults = [Fault.parse(f"kill {place}") for place in places]
    survived = train_in_threads(
        job, pipelines=pipelines, stages=stages, steps=steps, config=config, faults=faults
    )
    missed = [str(f) for f in faults if str(f) not in survived.summary.faults_fired]
    assert not missed, f"nothing is proven, as no worker came to that point: {'; '.join(missed)}"
    calm = train_in_threads(job, pipelines=pipelines, stages=stages, steps=steps, config=config)
    assert_same_bits(calm, survived)
    return survived


def same_bits(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs have come to the same: losses, parameters, buffers, optimizer state."""
    return not _differences(one, other)


def assert_same_bits(one: RunRecord, other: RunRecord) -> None:
    found = _differences(one, other)
    assert not found, f"{one.run_dir} and {other.run_dir} differ in {', '.join(found[:5])}"


def _differences(one: RunRecord, other: RunRecord) -> list[str]:
    found = []
    if one.losses != other.losses:
        found.append("the losses")
    if one.parameters_sha256 != other.parameters_sha256:
        found.append("the parameters")
    ours, theirs = _state(one), _state(other)
    found += sorted(ours.keys() ^ theirs.keys())
    return found + [key for key in ours.keys() & theirs.keys() if not _same(ours[key], theirs[key])]


def _state(run: RunRecord) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint."""
    checkpoint = run.checkpoints[-1] if run.checkpoints else None
    return {} if checkpoint is None else all_tensors(checkpoint)


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as itself here: bits are compared."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)
