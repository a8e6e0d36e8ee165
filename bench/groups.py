"""Signals to a whole run: the agent and its workers have a process group of their own."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def groups_of(pid: int) -> list[int]:
    """The process groups of a process and of all that it has started, its own first."""
    found: list[int] = []
    left = [pid]
    while left:
        one = left.pop()
        with suppress(ProcessLookupError, FileNotFoundError):
            group = os.getpgid(one)
            found += [] if group in found else [group]
            for thread in Path(f"/proc/{one}/task").iterdir():  # any of them may start processes
                left += map(int, (thread / "children").read_text().split())
    return found


def signal_all(pid: int, number: signal.Signals) -> None:
    """The launcher is woken last: while it sleeps, nobody's silence counts."""
    groups = groups_of(pid)
    for group in reversed(groups) if number == signal.SIGCONT else groups:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
