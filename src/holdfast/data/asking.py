"""Around the job's data set while it is asked: what it draws and what it raises."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from holdfast.errors import DataError


def key_of(purpose: str, *numbers: int) -> int:
    """A seed for one purpose; hashed, as seed 1 epoch 2 must not be seed 2 epoch 1."""
    text = f"{purpose} {numbers}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Torch's, Python's and NumPy's global generators start from ``key``.

    Afterwards the first two are as before; to copy NumPy's out and back would take 0.2 ms.
    """
    torch_before, python_before = torch.default_generator.get_state(), random.getstate()
    seed(key)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_before)
        random.setstate(python_before)


def seed(key: int) -> None:
    torch.default_generator.manual_seed(key)
    random.seed(key)
    numpy.random.seed(key)


@contextmanager
def one_thread() -> Iterator[None]:
    """As a process that loads ahead has: sums over several threads have other bits."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def data_errors(story: str) -> Iterator[None]:
    """Whatever is raised, also sys.exit() or a panic of a library in Rust; only Ctrl-C passes."""
    try:
        yield
    except (KeyboardInterrupt, DataError):
        raise
    except BaseException as why:
        kind = type(why).__name__
        raise DataError(f"{story.format(kind=kind)}: {why}") from why
