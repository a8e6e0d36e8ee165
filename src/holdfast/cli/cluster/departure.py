"""How an agent hears that its machine is to go: a signal, a file, or a command that is polled."""

import shlex
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from holdfast.cli.terminal.complaints import say
from holdfast.control.io.agents.agent import Departure
from holdfast.protocol.signals import ENDING

_POLL_S = 5.0


class Departures:
    """Asked again and again by the agent; never blocks. A second signal means: now."""

    def __init__(self, within_s: float, file: str | None, command: str | None) -> None:
        self._within_s = within_s
        self._file = Path(file) if file else None
        self._command = shlex.split(command) if command else []
        self._signals: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._polled_s = 0.0
        self._found: Departure | None = None

    def listen(self) -> None:
        for number in ENDING:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _note(self, number: int, _: FrameType | None) -> None:
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
        if self._file is not None and self._file.exists():
            return f"there is a file {self._file}"
        if self._command and self._command_says_so():
            return f"{self._command[0]} says so"
        return ""

    def _command_says_so(self) -> bool:
        """Run now and then; exit code 0: the machine is to go."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
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
