"""The signals that end a run, kept from processes that are not ready for them. Handles none."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """A program that is started meanwhile hears of none until it says what it does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hold_back() -> None:
    """This process is about to become another program."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
