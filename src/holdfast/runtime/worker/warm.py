"""What costs seconds once and is then shared by every forked worker."""

import gc
import importlib

import torch
import torch._dynamo  # any torch.optim constructor imports it: 2 s a worker if not done here

from holdfast.config import RunConfig


def prepare(config: RunConfig) -> None:
    """Called in the agent, before it forks. Must start no thread and run no backward."""
    torch.set_num_threads(1)
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter]).step()
    if config.gradients.mode == "exact":
        importlib.import_module(
            "holdfast.runtime.reduce.fixed_point"
        )  # Numba compiles, or loads its cache
    if config.recovery.consistency == "undo":
        importlib.import_module("holdfast.runtime.update.inverse_rollback")
    gc.collect()
    gc.freeze()  # the collector then leaves shared pages alone
