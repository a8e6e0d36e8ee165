"""Runs an agent on this machine for a launcher elsewhere, and ends it when the launcher is gone.

Single-threaded: one selector over the launcher's words, the agent's lines and its end.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from holdfast.launch.orders import AgentOrder

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 16
_MOST_LINE_BYTES = 1 << 16


def agent_words(order: AgentOrder, ticket: str, environment: Mapping[str, str]) -> list[str]:
    """``ticket``: path of the file."""
    words = [sys.executable, "-m", "holdfast", order.command, "--ticket", ticket]
    if order.slots is not None and order.command == "agent":
        words += ["--slots", str(order.slots)]
    words += ["--advertise", order.advertise] if order.advertise else []
    name = order.name or environment.get(order.name_from, "")
    return words + (["--name", name] if name else [])


def ticket_descriptor(ticket: str) -> int:
    """A file in memory that only we can read: nothing is left on the disk, however we end."""
    descriptor = os.memfd_create("ticket", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, ticket.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Keeper:
    """``write`` takes the agent's lines; OSError: nobody reads them any more."""

    def __init__(
        self,
        order: AgentOrder,
        words: Sequence[str],
        write: Callable[[bytes], None],
        *,
        pass_fds: Sequence[int] = (),
        label: str = "",
    ) -> None:
        self._order, self._write = order, write
        self._label = f"{label} | ".encode() if label else b""
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,  # what ends our group is passed on, once
            preexec_fn=None if order.outlives else _end_with_parent,
        )
        self._line = b""
        self._kill_s: float | None = None
        self._is_read = True

    def pass_on(self, number: int) -> None:
        """A signal: the agent knows what to do about it."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """It gets a moment to do so by itself."""
        if self._kill_s is None:
            self._kill_s = time.monotonic() + self._order.grace_s
            self.pass_on(signal.SIGTERM)

    def run(self, words: int) -> int:
        """``words``: the descriptor of the launcher's. The exit code of the agent."""
        assert self._process.stdout is not None
        lines, ended = self._process.stdout.fileno(), os.pidfd_open(self._process.pid)
        os.set_blocking(lines, False)  # what the agent leaves behind may keep its end open
        with selectors.DefaultSelector() as selector:
            for descriptor in (words, lines, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            is_over = False
            while not is_over:
                ready = {key.fd for key, _ in selector.select(self._pause_s())}
                if words in ready and self._hears_end(words):
                    selector.unregister(words)
                if lines in ready and not self._pumps(lines):
                    selector.unregister(lines)
                is_over = ended in ready
                if self._kill_s is not None and time.monotonic() > self._kill_s:
                    self.pass_on(signal.SIGKILL)
        os.close(ended)
        self._pumps(lines)
        self._say(self._line)
        with self._process:
            code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _pause_s(self) -> float | None:
        return None if self._kill_s is None else max(0.05, self._kill_s - time.monotonic())

    def _hears_end(self, words: int) -> bool:
        """No more words will come."""
        data = os.read(words, _CHUNK_BYTES)
        if data or not self._order.outlives:
            self.end()
        return not data

    def _pumps(self, lines: int) -> bool:
        """False: no more can come."""
        try:
            data = os.read(lines, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._line += data
        end = self._line.rfind(b"\n") + 1
        if len(self._line) > _MOST_LINE_BYTES:
            end = end or len(self._line)
        if end:
            whole, self._line = self._line[:end], self._line[end:]
            self._say(whole)
        return bool(data)

    def _say(self, lines: bytes) -> None:
        if self._label:
            lines = b"".join(self._label + line for line in lines.splitlines(keepends=True))
        if not lines or not self._is_read:
            return
        try:
            self._write(lines if lines.endswith(b"\n") else lines + b"\n")
        except OSError:
            self._is_read = False  # the launcher is gone; the agent may stay


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
