"""Where a worker's threads are, written to a file when somebody asks: by a signal or a message.

The signal works while the interpreter's lock is held by somebody who does not give it back.
"""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from holdfast.observability.stacks import header, stack_file

STACK_SIGNAL = signal.SIGUSR1


def ignore_signal() -> None:
    """Until there is a file to write to: by default it would end the process."""
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)


class Stacks:
    """``on_signal``: this worker is a process of its own."""

    def __init__(self, worker: str, *, on_signal: bool) -> None:
        self._worker, self._on_signal = worker, on_signal
        self._file: TextIO | None = None

    def open(self, directory: Callable[[], Path]) -> None:
        """By the thread that computes. Once; a disk that refuses is no reason to stop training."""
        if self._file is not None:
            return
        try:
            path = stack_file(directory(), self._worker, os.getpid())
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "w")
            self._file.write(header(self._worker, os.getpid(), threading.get_ident()))
            self._file.flush()
            if self._on_signal:
                faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True)
        except (OSError, RuntimeError):
            return

    def dump(self) -> None:
        if self._file is not None:
            faulthandler.dump_traceback(file=self._file, all_threads=True)

    def close(self) -> None:
        if self._file is None:
            return
        if self._on_signal:
            ignore_signal()
            faulthandler.unregister(STACK_SIGNAL)
        self._file.close()
        self._file = None
