"""Python's collector of cycles, less often: in a large run it would look again and again at all
that a coordinator knows of its workers."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 100)  # objects made since the last look, then looks of the one before


@contextmanager
def rare_collections(*, is_large: bool) -> Iterator[None]:
    """What there was before is restored; a small run changes nothing for its process."""
    before = gc.get_threshold()
    if is_large:
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
