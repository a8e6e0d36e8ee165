"""What a worker is told when it is started: enough to find its launcher and load its job."""

from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    worker: WorkerId
    host: str  # of the launcher
    port: int
    token: str  # secret of this run: strangers are refused
    job: str  # path of the job file
    config: RunConfig
