"""Random numbers of a layer, keyed by what is computed and never by who computes it.

Every layer's forward starts from its own seed, and so does its backward: dropout masks and noise
are the same wherever the stage boundaries lie, whichever worker runs the micro-batch, and in
whatever order.
"""

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy
import torch

from holdfast.device.processor import PROCESSOR, Device

DRAWING = threading.RLock()
"""Held while random numbers may be drawn: a process has one generator, which all of its workers
share if they are threads."""

_LARGEST_SEED = 2**63 - 1
_LARGEST_NUMPY_SEED = 2**32 - 1


def seed_for(seed: int, step: int, microbatch: int, layer: int, *output: int) -> int:
    """A 63-bit seed; neighbouring arguments give unrelated seeds.

    ``output``: of the backward that begins at this output of the layer.
    """
    numbers = (seed, step, microbatch, layer, *output)
    key = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") & _LARGEST_SEED


def seed_layer(
    seed: int, step: int, microbatch: int, layer: int, *output: int, device: Device = PROCESSOR
) -> None:
    """Make every random number drawn from here on depend on the arguments alone."""
    value = seed_for(seed, step, microbatch, layer, *output)
    # Not torch.manual_seed: it seeds every kind of device and takes 80 times as long.
    torch.default_generator.manual_seed(value)
    random.seed(value)  # e.g. for layers that are left out at random
    numpy.random.seed(value & _LARGEST_NUMPY_SEED)
    device.seed(value)


@contextmanager
def undisturbed(device: Device = PROCESSOR) -> Iterator[None]:
    """What is drawn inside does not show afterwards."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state()
    try:
        with device.undisturbed():
            yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
