"""Lines on standard error that never block: a pipe that nobody reads must not hold up the end.

Without a thread, as the agent, which forks, must have none.
"""

import io
import os
import select
import sys
import time
from contextlib import suppress

from holdfast.observability.text import folded

_SHOW_LIMIT_S = 2.0  # for a reader that is slow
_CHUNK_BYTES = 512  # a pipe that can be written to takes so much at once


def say(text: str) -> None:
    """Lost if nobody takes it within a moment, or if there is no standard error."""
    stream = sys.stderr
    if stream is None:  # closed by the caller
        return
    text = text if text.endswith("\n") else text + "\n"
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        stream.write(text)
        return
    with suppress(OSError, ValueError):  # the reader is gone, or the terminal is
        _write(descriptor, text.encode(stream.encoding or "utf-8", "replace"))


def complain(text: str) -> None:
    """One line, for logs and scripts; folded for people."""
    line = f"holdfast: {' '.join(text.split())}"
    is_read = sys.stderr is not None and sys.stderr.isatty()
    say("\n".join(folded(line)) if is_read else line)


def _write(descriptor: int, data: bytes) -> None:
    deadline_s = time.monotonic() + _SHOW_LIMIT_S
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while data:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return
        try:
            data = data[os.write(descriptor, data[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            continue
