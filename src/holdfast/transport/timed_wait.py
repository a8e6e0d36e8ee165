"""Waiting for a change, but not for ever."""

import threading
from collections.abc import Callable
from time import monotonic

from holdfast.errors import WaitTimeout


def wait_until(deadline_s: float, changed: threading.Condition, story: Callable[[], str]) -> None:
    """Return when something has ``changed``. WaitTimeout, with its story, after the deadline."""
    left_s = deadline_s - monotonic()
    if left_s <= 0:
        raise WaitTimeout(story())
    changed.wait(min(left_s, threading.TIMEOUT_MAX))
