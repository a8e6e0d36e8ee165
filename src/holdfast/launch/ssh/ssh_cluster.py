"""Agents on machines that ssh reaches. Each connection lives as long as its agent."""

import math
import time
from collections import deque
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.launch.clusters import MachineEnded, Say
from holdfast.launch.orders import STOP, AgentOrder, outlives
from holdfast.launch.programs import Program
from holdfast.launch.ssh import words
from holdfast.launch.ssh.hosts_file import HostsFile, SshHost, read_hosts

_AGAIN_S = 20.0  # a machine that reboots is back by and by
# An agent that ends soon after its start was refused: the one before it may still be in the run,
# if it outlives its connection. The pause is doubled each time, and its words are said once.
_SOON_S, _MOST_AGAIN_S = 60.0, 320.0
_NUM_KEPT = 20  # lines, for the reason of an end


class SshSession:
    """One machine. ``program``: None while it is not reached for."""

    def __init__(self, host: SshHost, config: Path | None, say: Say) -> None:
        self._host, self._config, self._say = host, config, say
        self.program: Program | None = None
        self.again_s = 0.0
        self._order = b""
        self._version: str | None = None  # of holdfast there; None: nothing was heard of it
        self._said: deque[str] = deque(maxlen=_NUM_KEPT)
        self._told = ""  # why it was not there, or did not stay, the last time
        self._started_s, self._pause_s = 0.0, _AGAIN_S
        self._lines: deque[str] = deque(maxlen=_NUM_KEPT)  # of an agent that may be refused
        self._known: frozenset[str] = frozenset()  # those of one that was

    def start(self, order: AgentOrder | None = None) -> None:
        if order is not None:
            self._order = order.encode()
        self._version, self._started_s = None, time.monotonic()
        self._said.clear()
        self._lines.clear()
        try:
            self.program = Program(words.ssh_words(self._host, self._config), self._order)
        except OSError as why:
            raise ConfigError(f"ssh cannot be started: {why.strerror}") from why

    def poll(self) -> MachineEnded | None:
        if self.program is None:
            return self._start_again() if time.monotonic() > self.again_s else None
        code = self.program.code()
        self.listen()
        if code is None:
            return None
        self.program.end(0.0)
        ended = self._ended(code)
        is_soon = time.monotonic() - self._started_s < _SOON_S
        is_refused = ended.was_up and is_soon and 0 < code < words.SSH_FAILED
        # One that has ended well was drained, or the run is over.
        again_s = time.monotonic() + self._next_pause(is_refused=is_refused)
        self.program, self.again_s = None, again_s if code else math.inf
        self._known = frozenset(self._lines if is_refused else ())
        return self._news(ended, is_known=is_refused or not ended.was_up)

    def _next_pause(self, *, is_refused: bool) -> float:
        pause_s = self._pause_s if is_refused else _AGAIN_S
        self._pause_s = min(2 * pause_s, _MOST_AGAIN_S) if is_refused else _AGAIN_S
        return pause_s

    def _start_again(self) -> MachineEnded | None:
        """This machine may be short of processes or memory for a while."""
        try:
            self.start()
        except ConfigError as why:
            self.again_s = time.monotonic() + _AGAIN_S
            ended = MachineEnded(self._host.machine, str(why), was_up=False)
            return self._news(ended, is_known=True)
        return None

    def listen(self) -> None:
        program = self.program
        if program is None:
            return
        for line in program.lines():
            if self._version is not None:
                self._pass_on(line)
            elif line.startswith(f"{words.MARK} "):
                self._version = line.removeprefix(words.MARK).strip()
            else:
                self._said.append(line)
        self._said += program.errors()

    def _pass_on(self, line: str) -> None:
        self._lines.append(line)
        if line not in self._known:
            self._say(f"{self._host.machine} | {line}")

    def _ended(self, code: int) -> MachineEnded:
        host = self._host
        if self._version is None:
            reason = words.why_not_up(host, self._config, code, self._said)
            return MachineEnded(host.machine, reason, was_up=False)
        if code == words.OTHER_VERSION:
            reason = words.other_version(host, self._version)
            return MachineEnded(host.machine, reason, was_up=False)
        return MachineEnded(host.machine, words.why_ended(code, self._said), was_up=True)

    def _news(self, ended: MachineEnded, *, is_known: bool) -> MachineEnded | None:
        """A machine that stays away is told of once, until its reason is another one."""
        is_news = not is_known or ended.reason != self._told
        self._told = ended.reason if is_known else ""
        return ended if is_news else None


class SshCluster:
    def __init__(self, file: HostsFile, say: Say, command: str, where: str) -> None:
        self._command, self._where, self._hosts = command, where, file.hosts
        self._sessions = [SshSession(host, file.ssh_config, say) for host in file.hosts]
        self._grace_s = AgentOrder("").grace_s

    def start(self, ticket: Path, machines: int) -> int:
        """All that are in the file: those above ``machines`` are spares."""
        if machines > len(self._hosts):
            raise ConfigError(
                f"{self._where}: has {len(self._hosts)} hosts; {machines} machines are wanted"
            )
        text = ticket.read_text()
        for session, host in zip(self._sessions, self._hosts, strict=True):
            session.start(
                AgentOrder(
                    text,
                    command=self._command,
                    slots=host.slots,
                    advertise=host.advertise,
                    name=host.machine,
                    outlives=outlives(text),
                )
            )
        return len(self._sessions)

    def poll(self) -> list[MachineEnded]:
        ended = [session.poll() for session in self._sessions]
        return [each for each in ended if each is not None]

    def stop(self) -> None:
        there = [session.program for session in self._sessions if session.program is not None]
        for program in there:
            program.say(STOP)
            program.hang_up()
        deadline_s = time.monotonic() + self._grace_s + 1.0
        while time.monotonic() < deadline_s:
            self._listen()
            if all(program.code() is not None for program in there):
                break
            time.sleep(0.05)
        self._listen()
        for program in there:
            program.end(0.0)
        for session in self._sessions:
            session.program = None

    def _listen(self) -> None:
        for session in self._sessions:
            session.listen()


def open_ssh(path: str, say: Say, command: str) -> SshCluster:
    return SshCluster(read_hosts(Path(path)), say, command, path)
