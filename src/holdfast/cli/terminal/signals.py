"""What the processes of a run do about the signals that end it.

They may reach every process of it at once; the launcher decides. Schedulers send them to a whole
process group or control group, terminals that close do too. Agent and workers outlive them until
the launcher tells them to stop, or is gone. A program that uses the Python API handles its own.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.protocol.signals import ENDING

BURST_S = 0.5
_forking = threading.local()
_DEFERRED = (
    b"interrupted: this worker goes on until the run ends; a second signal stops it at once\n"
)


class Repeats:
    """Which signals are a wish of their own, and which an echo of the one before.

    ``timeout`` signals its child and then the group, a shell passes a hang-up on: the same wish
    comes twice. Only of a Ctrl-C it is sure that somebody has pressed it again.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first_s: float | None = None

    def counts(self, number: int) -> bool:
        now_s = self._now()
        if self._first_s is None:
            self._first_s = now_s
            return True
        return number == signal.SIGINT or now_s - self._first_s > BURST_S


def ignore() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def leave_to_launcher() -> None:
    """For a worker that the agent has started.

    Not ``SIG_IGN``, which programs that the job starts would inherit: whoever ends them by SIGTERM
    would wait for ever.
    """
    _install(lambda number, frame: None)


def defer() -> None:
    """For a worker that was started by hand: the first one waits for the run, the next ends it."""
    repeats = Repeats()
    seen: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if repeats.counts(number):
            seen.append(number)
            if len(seen) > 1:
                _act_by_default(number)
            else:
                _say(_DEFERRED)

    _install(handle)


@contextmanager
def passed_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """In the launcher. A hang-up that is ignored already (``nohup``) stays so."""
    repeats = Repeats()

    def handle(number: int, _: FrameType | None) -> None:
        if repeats.counts(number):
            interrupt()

    before = {number: signal.signal(number, handle) for number in ENDING if _is_heard(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def forwarded(pass_on: Callable[[int], None]) -> Iterator[None]:
    """To a command that runs as if nothing were between it and the shell."""
    numbers = {*ENDING, signal.SIGQUIT}
    before = {number: signal.signal(number, lambda n, _: pass_on(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_heard(number: signal.Signals) -> bool:
    return number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN


def _install(handle: Callable[[int, FrameType | None], None]) -> None:
    for number in filter(_is_heard, ENDING):
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_as_usual
    )


def _before_fork() -> None:
    """A child forgets what reached it before Python was ready in it: it must not reach it yet."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_as_usual() -> None:
    """The job's own processes: ``multiprocessing`` ends its own by SIGTERM."""
    for number in filter(_is_heard, ENDING):
        signal.signal(number, signal.SIG_DFL)
    _after_fork()


def _act_by_default(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:
        return  # the terminal is gone: that is what the signal says
