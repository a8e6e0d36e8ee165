"""Runs the user's command as if nothing were between it and the shell, hooks put into its Python.
Knows nothing of what the hooks tell."""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.watch import hooks, startup

NOT_FOUND = 127  # as a shell says it
CANNOT_RUN = 126
_PR_SET_PDEATHSIG = 1
_KEYBOARD = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}  # a terminal tells the whole group
_PASSED_ON = {*_KEYBOARD, signal.SIGTERM}


def prepare(folder: Path) -> dict[str, str]:
    """Put the hooks into ``folder``; return the environment that makes Python load them."""
    shutil.copyfile(startup.__file__, folder / "sitecustomize.py")
    shutil.copyfile(hooks.__file__, folder / "holdfast_watch_hooks.py")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, startup.VARIABLE: str(socket_in(folder))}


def socket_in(folder: Path) -> Path:
    return folder / "socket"


@contextmanager
def signals_held() -> Iterator[Collection[int]]:
    """Those to be passed on wait, until there is somebody to pass them on to. Yields those that
    have waited before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WatchedCommand:
    """A running command. It dies with this process."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], held: Collection[int]
    ) -> None:
        """``held``: signals that wait in the command, too."""
        self._libc, self._held = ctypes.CDLL(None), held
        self._parent = os.getpid()
        self._process = subprocess.Popen(words, env=environment, preexec_fn=self._begin)
        self.pidfd = os.pidfd_open(self._process.pid)  # readable once it has ended

    def wait(self) -> int:
        """The exit code as a shell gives it: 128 + n for signal n."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        os.close(self.pidfd)

    def pass_on(self, number: int) -> None:
        """A signal that has reached this process."""
        if number in _KEYBOARD and _in_foreground():
            return  # the terminal has told the command as well
        self._process.send_signal(number)

    def _begin(self) -> None:
        """If this process is killed, the command is asked to end."""
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._parent:
            os._exit(128 + signal.SIGTERM)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as it is in the command
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held)


def _in_foreground() -> bool:
    """Is this the process group that a terminal's Ctrl-C reaches?"""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
