"""A process that ends with the one that has forked it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Asks for a signal when the thread that has forked this process is gone, ``parent`` its pid.

    Ends this process at once if that has happened already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)
