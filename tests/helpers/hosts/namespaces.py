"""Processes that hold namespaces, and how others get into them.

Whatever is held ends with its holder, and a holder ends when its standard input does: also when
the process that started it is killed.
"""

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

READY = "ready\n"
_LIMIT_S = 60.0


def environment() -> dict[str, str]:
    """For all that runs in a host: nothing outside of /tmp can be written there."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return os.environ | {"PATH": path, "HOME": "/tmp"}


class Holder:
    """``words`` end in a shell script that says READY and then reads its input to the end."""

    def __init__(self, words: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._front = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()
        )
        self.pid = 0  # of the process inside, as seen from here

    def wait_until_ready(self, what: str) -> None:
        """OSError, with its own words, if it has ended instead."""
        assert self._front.stdout is not None
        if self._front.stdout.readline() != READY:
            self._front.kill()
            raise OSError(f"{what} could not be set up: {self._front.communicate()[1].strip()}")
        self.pid = child_of(self._front.pid)

    def end(self) -> None:
        """With all its processes: the first of a pid namespace takes the others along."""
        handle = os.pidfd_open(self.pid) if self.pid and self._front.poll() is None else None
        self._front.kill()  # and with it the one inside: unshare --kill-child
        if handle is not None:
            select.select([handle], [], [], _LIMIT_S)
            os.close(handle)
        with self._front:  # waits, and closes the pipes
            self.pid = 0


def child_of(pid: int) -> int:
    """The one that ``unshare --fork`` or ``nsenter`` has forked."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        if words := path.read_text().split():
            return int(words[0])
        time.sleep(0.001)
    raise OSError(f"process {pid} has no child")
