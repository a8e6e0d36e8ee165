"""Around the job's own code: layers, loss, data set. Whatever it raises is told, with its step.

Also what is no ``Exception``: sys.exit() in a data set, or a panic of a library in Rust, would
end the worker without a word, and then its replacement.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import JobError
from holdfast.runtime.injection import Killed

_LOOK_S = 0.05


@contextmanager
def job_code(step: int, what: str, check: Callable[[], None]) -> Iterator[None]:
    """``check`` raises if this worker is to stop: that, and not what it led to, is the reason."""
    try:
        yield
    except (Killed, KeyboardInterrupt):
        raise
    except BaseException as why:
        check()
        raise JobError(step, f"{what} of step {step + 1} failed") from why


def pause(pause_s: float, check: Callable[[], None]) -> None:
    """Before the data set is asked again; not longer than this worker may go on."""
    until_s = time.monotonic() + pause_s
    while (left_s := until_s - time.monotonic()) > 0:
        check()
        time.sleep(min(left_s, _LOOK_S))
