"""Runs whose workers are threads of this process: one at a time, and torch is left as it was.

Workers set up torch for a whole process, and share its random number generators.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from holdfast.baselines.worker_registry import keeping_of
from holdfast.config import GradientsConfig, RunConfig
from holdfast.runtime.job.bit_changers import before_loading, set_stance
from holdfast.runtime.worker.threads import WorkerThreads

_UNTOUCHED = RunConfig(gradients=GradientsConfig(mode="fast"))  # switches nothing off
_turn = threading.Lock()


def starter() -> WorkerThreads:
    return WorkerThreads(keeping_of)


@contextmanager
def as_before() -> Iterator[None]:
    """Another run of this kind waits here for its turn."""
    with _turn:
        threads = torch.get_num_threads()
        exact = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(exact, warn_only=warn_only)
            before_loading(_UNTOUCHED)
            set_stance(_UNTOUCHED)
            torch.set_rng_state(drawn[0])
            random.setstate(drawn[1])
            numpy.random.set_state(drawn[2])
