"""What a machine may be out of for a while: descriptors, threads, processes, memory."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # between two tries
_SHORT = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS}

_Result = TypeVar("_Result")


def is_scarcity(why: BaseException) -> bool:
    """Threads apart: Python has no kind of its own for what goes wrong without them."""
    return isinstance(why, MemoryError) or (isinstance(why, OSError) and why.errno in _SHORT)


def patiently(act: Callable[[], _Result]) -> _Result:
    """Tried again for some seconds; what went wrong the last time is raised.

    For what leaves nothing behind when it fails, and is no code of a job: a RuntimeError is taken
    for the lack of a thread.
    """
    for pause_s in PAUSES_S:
        try:
            return act()
        except (OSError, MemoryError, RuntimeError) as why:
            if not isinstance(why, RuntimeError) and not is_scarcity(why):
                raise
        time.sleep(pause_s)
    return act()
