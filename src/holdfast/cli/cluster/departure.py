"""How an agent hears that its machine is to go: a signal, a file, or a command that is polled."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from holdfast.cli.terminal.complaints import say
from holdfast.cli.terminal.signals import Repeats
from holdfast.control.io.agents.agent import Departure
from holdfast.protocol.signals import ENDING

_POLL_S = 5.0


def end_when_told() -> None:
    """While nothing is there to be handed over. The first process of a container has no other way
    to hear of it."""
    for number in ENDING:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


class Departures:
    """Asked again and again by the agent; never blocks. A second signal means: now."""

    def __init__(self, within_s: float, file: str | None, command: str | None) -> None:
        self._within_s = within_s
        self._file = Path(file) if file else None
        self._command = shlex.split(command) if command else []
        self._signals: list[int] = []
        self._repeats = Repeats()
        self._has_complained = False
        self._process: subprocess.Popen[bytes] | None = None
        self._polled_s = 0.0
        self._found: Departure | None = None

    def listen(self) -> None:
        for number in ENDING:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._repeats.counts(number):
            self._signals.append(number)

    def __call__(self) -> Departure | None:
        if len(self._signals) > 1:
            return Departure("it was told to end at once", 0.0)
        if self._found is None:
            reason = self._reason()
            if reason:
                self._found = Departure(reason, self._within_s)
                say(f"holdfast agent: {reason}; its workers are let go within {self._within_s:g} s")
        return self._found

    def _reason(self) -> str:
        if self._signals:
            return f"it got {signal.Signals(self._signals[0]).name}"
        try:
            if self._file is not None and self._file.exists():
                return f"there is a file {self._file}"
            if self._command and self._command_says_so():
                return f"{self._command[0]} says so"
        except OSError as why:
            self._complain(why)
        return ""

    def _complain(self, why: OSError) -> None:
        """Once: the machine may go all the same, and its workers have other things to do."""
        if not self._has_complained:
            self._has_complained = True
            say(f"holdfast agent: --drain-file or --drain-command: {why}; tried again")

    def _command_says_so(self) -> bool:
        """Run now and then; exit code 0: the machine is to go."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                if time.monotonic() - self._polled_s > _POLL_S:
                    self._process.kill()  # or nothing that comes later is heard
                return False
            self._process = None
            return code == 0
        if time.monotonic() - self._polled_s >= _POLL_S:
            self._polled_s = time.monotonic()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return False
