"""Around the job's own code: layers, loss, data set. Whatever it raises is told, with its step.

Also what is no ``Exception``: sys.exit() in a data set, or a panic of a library in Rust, would
end the worker without a word, and then its replacement.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.errors import JobError
from holdfast.faults.injection import Killed
from holdfast.runtime.link.activity import Activity

_LOOK_S = 0.05


@dataclass(frozen=True)
class JobCode:
    """What is watched while the job's code runs."""

    check: Callable[[], None]
    """Raises if this worker is to stop."""

    ran: Callable[[str], None] = lambda who: None
    """Told which code has run; raises if it did what it may not."""

    activity: Activity = field(default_factory=Activity)
    """Told what this worker is busy with."""

    @contextmanager
    def guarded(self, step: int, what: str) -> Iterator[None]:
        """If this worker is to stop, then that, and not what it led to, is the reason."""
        try:
            yield
        except (Killed, KeyboardInterrupt):
            raise
        except BaseException as why:
            self.check()
            raise JobError(step, f"{what} of step {step + 1} failed") from why

    def pause(self, pause_s: float) -> None:
        """Before the data set is asked again; not longer than this worker may go on."""
        with self.activity.waiting():
            until_s = time.monotonic() + pause_s
            while (left_s := until_s - time.monotonic()) > 0:
                self.check()
                time.sleep(min(left_s, _LOOK_S))
