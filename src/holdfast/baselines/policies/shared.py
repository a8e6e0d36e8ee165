"""Costs that several policies share, with where they come from: restarts and checkpoints."""

from math import ceil, log2

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.policy import Saving

RESTART = (
    "TrainMover: Megatron starts in about 100 s on 32 GPUs and 388 s on 8,192; "
    "in between by the logarithm"
)
_FEW, _FEW_S, _MANY, _MANY_S = 32, 100.0, 8192, 388.0
_TO_HOST_BYTES_S = 10e9  # a copy of the state from a GPU to its host, PCIe 3 x16 as measured


def restart_s(job: JobCosts) -> float:
    """All processes start anew, connect, and load a checkpoint."""
    gpus = max(job.num_workers * job.gpus_a_worker, _FEW)
    slope_s = (_MANY_S - _FEW_S) / log2(_MANY / _FEW)
    return _FEW_S + slope_s * log2(gpus / _FEW)


def saved_within(job: JobCosts, period_s: float, overhead: float) -> Saving:
    """CheckFreq: a copy stops the step, writing does not; as often as ``overhead`` allows."""
    stall_s = job.state_a_gpu / _TO_HOST_BYTES_S
    write_s = job.state_a_gpu / job.disk_bytes_s
    every = max(ceil(write_s / period_s), ceil(stall_s / (overhead * period_s)), 1)
    return Saving(every, stall_s)
