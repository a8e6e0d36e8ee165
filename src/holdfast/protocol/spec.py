"""What a worker is told when it is started: enough to find its launcher and load its job."""

import os
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig

# By environment: a command line shows in ps.
SPEC_VARIABLE = "HOLDFAST_WORKER"
REJOIN_VARIABLE = "HOLDFAST_REJOIN"  # set: this process was a worker of the run before
BY_HAND_VARIABLE = "HOLDFAST_BY_HAND"  # set: somebody sits in front of it


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    worker: WorkerId
    host: str  # of the launcher
    port: int
    token: str  # secret of this run: strangers are refused
    job: str  # path of the job file
    job_sha256: str  # as it was when the run began
    config: RunConfig


def worker_environment(config: RunConfig) -> dict[str, str]:
    """For the process that will compute: read once, when its libraries are loaded."""
    threads = str(config.workers.compute_threads)
    return os.environ | {
        "OMP_NUM_THREADS": threads,
        # Threads that spin while they wait take the cores from the other workers.
        "OMP_WAIT_POLICY": "PASSIVE",
        "MKL_NUM_THREADS": threads,
        # Freed tensors stay with the process: page faults cost up to 10 % otherwise.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "MALLOC_TOP_PAD_": str(16 << 20),
    }
