"""One host: what runs in it, its files, and all that can happen to its cable."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.hosts.namespaces import READY, Holder, child_of, environment

if TYPE_CHECKING:
    from helpers.hosts.network import Network

_WIRE = Path(__file__).with_name("wire.py")
_NOBODY = "02:00:00:00:00:01"  # the address of no card: a switch passes it on, nobody takes it


class Program:
    """A command in a host; what it says goes to files outside."""

    def __init__(self, host: "Host", words: Sequence[str], into: Path, name: str) -> None:
        self._stdout, self._stderr = into / f"{name}.out", into / f"{name}.err"
        with open(self._stdout, "wb") as stdout, open(self._stderr, "wb") as stderr:
            self.process = subprocess.Popen(
                host.words(words),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment(),
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def signal(self, number: signal.Signals) -> None:
        """To the command itself, not to what stands in front of it."""
        os.kill(child_of(self.process.pid), number)
        if number == signal.SIGCONT:  # what stands in front of it has stopped with it
            self.process.send_signal(number)

    def wait(self, limit_s: float) -> int:
        return self.process.wait(limit_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Host:
    def __init__(self, network: "Network", number: int) -> None:
        self.network = network
        self.name = f"h{number}"
        self.ipv4, self.ipv6 = f"10.77.0.{number + 1}", f"fd77::{number + 1:x}"
        self.port = f"p{number}"  # its end of the cable at the switch
        self.plug = self.port  # what is in the switch: the end of a slow cable, if it has one
        self._holder: Holder | None = None
        self._programs: list[Program] = []
        self._wire: subprocess.Popen[str] | None = None

    # --- power ---

    @property
    def is_on(self) -> bool:
        return self._holder is not None

    @property
    def pid(self) -> int:
        """Of its first process, as seen from here."""
        if self._holder is None:
            raise OSError(f"{self.name} is off")
        return self._holder.pid

    def boot(self, words: Sequence[str]) -> None:
        self._holder = Holder(words)

    def wait_until_up(self) -> None:
        assert self._holder is not None
        self._holder.wait_until_ready(self.name)

    def set_up_card(self) -> None:
        words = f"addr add {self.ipv4}/24 dev eth0\naddr add {self.ipv6}/64 dev eth0 nodad\n"
        self._do(["ip", "-batch", "-"], f"{words}link set eth0 up\n")

    def power_off(self, *, silently: bool = True) -> None:
        """All its processes are gone at once. Silently: no other host hears of it."""
        if self.is_on and silently:
            self.network.ip(f"link del {self.port}")
        self.end()

    def end(self) -> None:
        self._remove_wire()
        if self._holder is not None:
            self._holder.end()
            self._holder = None
        for program in self._programs:
            program.end()

    # --- programs and files ---

    def words(self, words: Sequence[str]) -> list[str]:
        return self.network.words_in(self, words)

    def start(self, words: Sequence[str], into: Path, name: str = "") -> Program:
        """``into``: where, outside of the host, its output is written."""
        name = name or f"{self.name}-{len(self._programs)}"
        self._programs.append(Program(self, words, into, name))
        return self._programs[-1]

    def run(self, words: Sequence[str]) -> str:
        """What it has printed; subprocess.CalledProcessError if it did not succeed."""
        return subprocess.run(
            self.words(words), env=environment(), stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def file(self, path: str) -> Path:
        """A file of the host, such as /tmp/x, to be read and written from here."""
        return Path(f"/proc/{self.pid}/root{path}")

    # --- its cable ---

    def cut(self, for_s: float | None = None) -> None:
        """None: until ``plug_in``."""
        self.network.ip(f"link set {self.port} down")
        if for_s is not None:
            time.sleep(for_s)
            self.plug_in()

    def plug_in(self) -> None:
        self.network.ip(f"link set {self.port} up")

    def block(self, to: "Host") -> None:
        """Nothing from here reaches ``to``; what ``to`` sends still comes."""
        for ip in (to.ipv4, to.ipv6):
            self._do(["ip", "neigh", "replace", ip, "lladdr", _NOBODY, "dev", "eth0"])

    def unblock(self, to: "Host") -> None:
        for ip in (to.ipv4, to.ipv6):
            self._do(["ip", "neigh", "del", ip, "dev", "eth0"])

    def limit_rate(self, megabits_s: float | None) -> None:
        """Both ways; None: no limit."""
        limit = f"rate {megabits_s}mbit burst 64kb latency 400ms"
        rule = "del dev %s root" if megabits_s is None else f"replace dev %s root tbf {limit}"
        self.network.run(["tc", "qdisc", *(rule % self.port).split()])
        self._do(["tc", "qdisc", *(rule % "eth0").split()])

    def delay(self, way_s: float) -> None:
        """Each way takes so long from now on; 0: a good cable again."""
        self._remove_wire()
        if not way_s:
            return
        near, far = f"{self.port}near", f"{self.port}far"
        self.network.ip(
            f"link add {near} type veth peer name {far}",
            f"link set {self.port} nomaster",
            f"link set {far} master br0 up",
            f"link set {near} up",
        )
        self._wire = subprocess.Popen(
            self.network.words([sys.executable, str(_WIRE), self.port, near, str(way_s)]),
            stdin=subprocess.PIPE,  # it ends with us
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.plug = far
        assert self._wire.stdout is not None
        if self._wire.stdout.readline() != READY:
            raise OSError(f"the slow cable of {self.name} could not be set up")

    def _remove_wire(self) -> None:
        if self._wire is None:
            return
        self._wire.kill()
        with self._wire:
            self._wire = None
        self.network.ip(f"link del {self.plug}")
        self.plug = self.port
        if self.is_on:
            self.network.ip(f"link set {self.port} master br0")

    def _do(self, words: Sequence[str], said: str = "") -> None:
        subprocess.run(self.words(words), env=environment(), input=said, text=True, check=True)
