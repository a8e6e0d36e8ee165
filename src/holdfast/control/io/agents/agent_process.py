"""How a run's workers are brought up: by an agent process that forks them."""

import os
import subprocess
import sys
from typing import Protocol

from holdfast.auth.secret import FD_VARIABLE, hand_over
from holdfast.config import RunConfig
from holdfast.protocol.messages import StartWorkers
from holdfast.protocol.signals import held_back
from holdfast.protocol.spec import Access, worker_environment

_END_LIMIT_S = 1.5  # above its grace for the workers


class Starter(Protocol):
    """Brings up whatever runs the workers, as processes or as threads."""

    def start(self, access: Access, order: StartWorkers) -> None:
        """Called again for workers that come later, unless an agent has been started."""
        ...

    def ended(self) -> str | None:
        """Why nobody will say hello any more; None: all is well."""
        ...

    def stop(self) -> None:
        """Leave nothing behind, whatever state the workers are in."""
        ...

    def leave(self) -> None:
        """Another coordinator has taken over: whatever was started is theirs."""
        ...


class Awaited:
    """Agents are started by others, on machines of their own."""

    def start(self, access: Access, order: StartWorkers) -> None:
        pass

    def ended(self) -> str | None:
        return None

    def stop(self) -> None:
        pass

    def leave(self) -> None:
        pass


class AgentProcess:
    """The usual starter."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, access: Access, order: StartWorkers) -> None:
        descriptor = hand_over(access.secret)
        words = ["agent", "--connect", str(access), "--generation", str(access.generation)]
        words += ["--certificate", access.certificate] if access.certificate else []
        # Strangers may crowd the door for longer than a moment.
        words += ["--try-for", str(self._config.workers.start_limit_s)]
        with held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                env=worker_environment(self._config) | {FD_VARIABLE: str(descriptor)},
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
                # What ends this process group must not end the job's own processes before they
                # have saved; theirs is the agent's.
                start_new_session=True,
            )
        os.close(descriptor)

    def ended(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else f"the agent that starts workers ended with code {code}"

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers end with it (parent-death signal)
            self._process.wait()

    def leave(self) -> None:
        self._process = None
