"""What a worker is told of the run that it is part of, however it comes to it."""

from dataclasses import dataclass

from holdfast.config import RunConfig
from holdfast.protocol.fields import Number, Path, PlaceOrNone, Sha256, Sha256OrNone


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatToRun:
    job: Path  # path of the job file
    job_sha256: Sha256
    run_dir: Path  # all that is named later is below it
    resumed: PlaceOrNone  # checkpoint that the run went on from; empty: none
    config: RunConfig
    launch: Number = 0  # its first coordinator: who is of another one belongs to another run
    bundle: Sha256OrNone = ""  # that the job is in; empty: it is installed, or lies at that path
