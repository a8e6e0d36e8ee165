"""A program that starts agents elsewhere: told things by its input, heard line by line."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_CHUNK_BYTES = 1 << 16
_MOST_LINE_BYTES = 1 << 16
_END_LIMIT_S = 2.0


class _Lines:
    """Those that have come; never waits."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._descriptor, self._rest = pipe.fileno(), b""
        self._is_open = True

    def take(self) -> list[str]:
        while self._is_open and len(self._rest) <= _MOST_LINE_BYTES:
            try:
                data = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                break
            self._is_open = bool(data)
            self._rest += data
        *whole, self._rest = self._rest.split(b"\n")
        if self._rest and (not self._is_open or len(self._rest) > _MOST_LINE_BYTES):
            whole.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace").rstrip("\r") for line in whole]


class Program:
    """Nothing here blocks, save :meth:`end`, for a moment."""

    def __init__(
        self, words: Sequence[str], said: bytes, environment: Mapping[str, str] | None = None
    ) -> None:
        """OSError: it cannot be started. ``said``: less than a pipe holds."""
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for the run, which then ends them in good order
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._errors = _Lines(self._process.stdout), _Lines(self._process.stderr)
        self.say(said)

    def say(self, said: bytes) -> None:
        """Lost if it has ended."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(said)
            self._process.stdin.flush()

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def code(self) -> int | None:
        """None: it runs. Ask before the lines are taken: then they are all that it has said."""
        return self._process.poll()

    def lines(self) -> list[str]:
        return self._out.take()

    def errors(self) -> list[str]:
        return self._errors.take()

    def end(self, limit_s: float) -> None:
        """After so long it is ended; what it has started elsewhere sees its input end."""
        self.hang_up()
        for end in (self._process.terminate, self._process.kill):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(limit_s)
                break
            end()
            limit_s = _END_LIMIT_S
        with suppress(OSError), self._process:
            return
