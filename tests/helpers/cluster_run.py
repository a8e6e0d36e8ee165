"""A run over several machines, as its user sees it: one coordinates, each has an agent."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from helpers.hosts import Host, Program
from helpers.live import pace, wait_until
from holdfast.addresses import host_port
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.observability.summary import SUMMARY_FILE

LIMIT_S = 300.0  # of one wait: nine processes load torch on two cores
JOB = "/tmp/job/paced_gpt.py"
RUN_DIR, TICKET, PORT = "/tmp/run", "/tmp/run.ticket", 40555
HOLDFAST = [sys.executable, "-m", "holdfast"]
_SLOW = "/tmp/slow"
# A tiny GPT whose samples come late as long as a file lies on the machine that loads them.
JOB_TEXT = f"""\
import dataclasses
import pathlib
import time

from holdfast.models import tiny_gpt
from holdfast.models.text import CharText


class Paced(CharText):
    def __getitem__(self, index):
        try:
            time.sleep(float(pathlib.Path("{_SLOW}").read_text()))
        except FileNotFoundError:
            pass
        return super().__getitem__(index)


def job():
    return dataclasses.replace(tiny_gpt.job(), data=Paced(tiny_gpt.CONTEXT))
"""
_Event = TypeVar("_Event")


class ClusterRun:
    """The first host coordinates. Agents of ``hosts[:machines]`` are started; others may follow."""

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        *words: str,
        machines: int,
        slots: int = 2,
        start_with: int = 0,
        first: int = 0,
        job: str = JOB_TEXT,
        ipv6: bool = False,
    ) -> None:
        """``first``: place of the first host that has an agent."""
        self.hosts, self._folder, self._slots = hosts, folder, slots
        host = hosts[0].ipv6 if ipv6 else hosts[0].ipv4
        own = ["--machines", str(machines), "--listen", host_port(host, PORT)]
        own += ["--start-with", str(start_with)] if start_with else []
        hosts[0].file(JOB).parent.mkdir()
        hosts[0].file(JOB).write_text(job)  # the others are sent it
        command = [*HOLDFAST, "train", JOB, "--run-dir", RUN_DIR, *own, *words]
        self.program = hosts[0].start(command, folder, "train")
        ticket = hosts[0].file(TICKET)
        wait_until(ticket.exists, "the ticket", LIMIT_S)
        self._ticket = ticket.read_text()
        self.agents: dict[str, Program] = {}
        for host in hosts[first : first + (start_with or machines)]:
            self.add(host)

    def add(self, host: Host) -> None:
        path = host.file("/tmp/ticket")
        path.write_text(self._ticket)
        path.chmod(0o600)
        words = ["agent", "--ticket", "/tmp/ticket", "--slots", str(self._slots)]
        number = len(self.agents)
        self.agents[host.name] = host.start(
            [*HOLDFAST, *words], self._folder, f"agent-{host.name}-{number}"
        )

    def pace(self, seconds: float) -> None:
        """A sample takes so long; 0: none."""
        for host in self.hosts:
            if host.is_on and seconds:
                pace(host.file(_SLOW).parent, seconds)
            elif host.is_on:
                host.file(_SLOW).unlink(missing_ok=True)

    # --- what has happened ---

    def all_of(self, kind: type[_Event]) -> list[_Event]:
        path = self.hosts[0].file(f"{RUN_DIR}/{EVENTS_FILE}")
        found = read_events(path) if path.exists() else []
        return [event for event in found if isinstance(event, kind)]

    def wait_for(self, kind: type[_Event], number: int = 1) -> list[_Event]:
        def is_there() -> bool:
            ended = self.program.process.poll() is not None  # before the look: all events count
            there = len(self.all_of(kind)) >= number
            assert there or not ended, self.told
            return there

        wait_until(is_there, f"{number} {kind.__name__}", LIMIT_S)
        return self.all_of(kind)

    @property
    def told(self) -> str:
        agents = [f"{name}: {program.stderr}" for name, program in self.agents.items()]
        return "\n".join([self.program.stdout, self.program.stderr, *agents])

    def sha256(self) -> str:
        """Of its result."""
        code = self.program.wait(LIMIT_S)
        assert code == 0, self.told
        summary = json.loads(self.hosts[0].file(f"{RUN_DIR}/{SUMMARY_FILE}").read_text())
        assert summary["outcome"] == "finished"
        return str(summary["parameters_sha256"])
