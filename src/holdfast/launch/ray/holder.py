"""What an actor is: it holds the process of an agent on its node. Knows nothing of Ray."""

import sys
import time
from dataclasses import replace

import holdfast
from holdfast.host import resources
from holdfast.launch.orders import STOP, read_order
from holdfast.launch.programs import Program

_PAUSE_S = 0.05


class AgentHolder:
    """If its process ends, the agent does: its keeper's input is closed."""

    def __init__(self) -> None:
        self._keeper: Program | None = None

    def begin(self, order: bytes, suffix: str, version: str) -> tuple[str, str]:
        """The name of this machine, and why there can be no agent; empty: there is one."""
        name = f"{resources.machine_name()}{suffix}"
        if version != holdfast.__version__:
            why = f"has holdfast {holdfast.__version__}; here is {version}; install the same"
            return name, why
        words = [sys.executable, "-m", "holdfast.cli.launching.keeper"]
        try:
            self._keeper = Program(words, replace(read_order(order), name=name).encode())
        except OSError as why:
            return name, f"the agent cannot be started: {why.strerror}"
        return name, ""

    def listen(self, limit_s: float) -> tuple[list[str], int | None]:
        """Its next lines, and how it ended. None: it runs."""
        assert self._keeper is not None
        deadline_s = time.monotonic() + limit_s
        while True:
            code = self._keeper.code()
            lines = [*self._keeper.lines(), *self._keeper.errors()]
            if code is not None:
                self._keeper.end(0.0)
            if lines or code is not None or time.monotonic() > deadline_s:
                return lines, code
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        if self._keeper is not None:
            self._keeper.say(STOP)
