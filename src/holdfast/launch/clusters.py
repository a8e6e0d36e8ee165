"""What every launcher of agents is, whatever it starts them with."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

Say = Callable[[str], None]  # takes a line for the user


class MachineEnded(NamedTuple):
    """Its agent is not there, or not any more."""

    machine: str
    reason: str  # one line, without the name of the machine
    was_up: bool  # its agent had been started
    is_last: bool = False  # no agent of any machine will come after this


class Cluster(Protocol):
    """Used by one thread. Lines of agents go to the ``Say`` that it was made with."""

    def start(self, ticket: Path, machines: int) -> int:
        """Returns at once: how many are reached for, spares too.

        ConfigError: there are not so many machines.
        """
        ...

    def poll(self) -> list[MachineEnded]:
        """Who has ended since the last time, and why. Each is tried again if that can help."""
        ...

    def stop(self) -> None:
        """Agents that are still there are told to end, and then made to."""
        ...
