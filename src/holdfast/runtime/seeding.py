"""Random numbers of a layer, keyed by what is computed and never by who computes it.

Every layer's forward starts from its own seed, so dropout masks are the same
wherever the stage borders lie and whichever worker runs the micro-batch.
"""

import random
import struct
from hashlib import blake2b

import numpy
import torch

_LARGEST_SEED = 2**63 - 1
_LARGEST_NUMPY_SEED = 2**32 - 1


def seed_for(seed: int, step: int, microbatch: int, layer: int) -> int:
    """A 63-bit seed; neighbouring arguments give unrelated seeds."""
    key = struct.pack("<4q", seed, step, microbatch, layer)
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") & _LARGEST_SEED


def seed_layer(seed: int, step: int, microbatch: int, layer: int) -> None:
    """Make every random number drawn from here on depend on the four arguments alone."""
    value = seed_for(seed, step, microbatch, layer)
    # Not torch.manual_seed: it seeds every kind of device and takes 80 times as long.
    torch.default_generator.manual_seed(value)
    random.seed(value)  # e.g. for layers that are left out at random
    numpy.random.seed(value & _LARGEST_NUMPY_SEED)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(value)
