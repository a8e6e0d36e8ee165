"""A switch in a namespace of its own, and the hosts on its ports."""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.hosts import scripts
from helpers.hosts.host import Host
from helpers.hosts.namespaces import Holder, environment

_NEEDED = ("unshare", "nsenter", "setpriv", "ip", "tc", "mount", "findmnt", "hostname")
_USER = ("-U", "--preserve-credentials")
_HIDDEN = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_ROOT = Path(__file__).parents[3]


def why_not() -> str:
    """Why there can be no hosts here; empty: there can. For ``pytest.mark.skipif``."""
    path = environment()["PATH"]
    if missing := [name for name in _NEEDED if shutil.which(name, path=path) is None]:
        return f"not installed: {', '.join(missing)}"
    words = ["unshare", "-UrnmT", "sh", "-c", "ip link add v0 type veth peer name v1"]
    tried = subprocess.run(words, capture_output=True, text=True, env=environment())
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def hosts(
    num: int, *, share: Iterable[Path] = (), clocks_s: Sequence[int] | None = None
) -> Iterator[tuple[Host, ...]]:
    """``share``: what lies in /tmp and is to be read by all of them, besides this checkout.

    ``clocks_s``: how far the monotonic clock of each is ahead of ours. The time of day is the
    same for all: Linux has one.
    """
    offsets_s = clocks_s or [1000 * (number + 1) for number in range(num)]
    network = Network(num, _seen([_ROOT, Path(sys.prefix), Path(sys.base_prefix), *share]))
    try:
        network.start(offsets_s)
        yield network.hosts
    finally:
        network.close()


class Network:
    def __init__(self, num: int, share: Sequence[str]) -> None:
        self.hosts = tuple(Host(self, number) for number in range(num))
        self._share = share
        self._switch: Holder | None = None
        self._num_groups = 1
        self._clocks_s: dict[Host, int] = {}

    def start(self, clocks_s: Sequence[int]) -> None:
        names = ["127.0.0.1 localhost", "::1 localhost"]
        names += [f"{ip} {host.name}" for host in self.hosts for ip in (host.ipv4, host.ipv6)]
        inside = ["sh", "-ec", scripts.SWITCH, "switch", "\n".join(names)]
        self._switch = Holder(["unshare", "-Urnm", "--fork", "--kill-child", *inside])
        self._switch.wait_until_ready("the switch")
        for host, clock_s in zip(self.hosts, clocks_s, strict=True):
            host.boot(self._boot_words(host, clock_s))
        for host in self.hosts:
            host.wait_until_up()
        self._clocks_s = dict(zip(self.hosts, clocks_s, strict=True))
        self._connect(self.hosts)

    def power_on(self, host: Host) -> None:
        """One that was off: as new, with nothing of what was in its /tmp."""
        host.boot(self._boot_words(host, self._clocks_s[host]))
        host.wait_until_up()
        self._connect([host])

    def _connect(self, hosts: Sequence[Host]) -> None:
        cables = [
            f"link add {host.port} type veth peer name eth0 netns {host.pid}\n"
            f"link set {host.port} master br0 up\n"
            for host in hosts
        ]
        self.run(["ip", "-batch", "-"], "".join(cables))
        for host in hosts:
            host.set_up_card()

    def _boot_words(self, host: Host, clock_s: int) -> list[str]:
        clock = ["-T", "--monotonic", str(clock_s), "--boottime", str(clock_s)]
        own = ["unshare", "-n", "-u", "-m", "-i", "-p", *clock, "--fork", "--mount-proc"]
        inside = ["sh", "-c", scripts.HOST, "host", host.name, *self._share]
        return self.words([*own, "--kill-child", *inside])

    def words(self, words: Sequence[str]) -> list[str]:
        """A command where the switch is."""
        assert self._switch is not None
        return ["nsenter", "-t", str(self._switch.pid), *_USER, "-n", "-m", "--", *words]

    def words_in(self, host: Host, words: Sequence[str]) -> list[str]:
        """A command in a host. It dies with the nsenter in front of it."""
        own = [*_USER, "-m", "-n", "-u", "-i", "-p", "-T", "-w"]
        dies = ["setpriv", "--pdeathsig", "KILL"]
        return ["nsenter", "-t", str(host.pid), *own, "--", *dies, "--", *words]

    def run(self, words: Sequence[str], said: str = "") -> None:
        done = subprocess.run(
            self.words(words), input=said, text=True, env=environment(), capture_output=True
        )
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")

    def ip(self, *commands: str) -> None:
        self.run(["ip", "-batch", "-"], "\n".join(commands))

    def partition(self, *groups: Iterable[Host]) -> None:
        """Each group is a switch of its own: between groups all frames vanish."""
        self.heal()
        self._num_groups = len(groups)
        for index, group in enumerate(groups):
            if index:
                self.ip(
                    f"link add br{index} type bridge forward_delay 0 mcast_snooping 0",
                    f"link set br{index} up",
                )
            self.ip(*(f"link set {host.plug} master br{index}" for host in group if host.is_on))

    def heal(self) -> None:
        """No partition any more; cables stay as they are."""
        self.ip(*(f"link set {host.plug} master br0" for host in self.hosts if host.is_on))
        self.ip(*(f"link del br{index}" for index in range(1, self._num_groups)))
        self._num_groups = 1

    def close(self) -> None:
        for host in self.hosts:
            host.end()
        if self._switch is not None:
            self._switch.end()


def _seen(paths: Iterable[Path]) -> list[str]:
    """Those that a host would not see otherwise, and none that lies in another of them."""
    hidden = {
        path.resolve()
        for path in paths
        if any(path.resolve().is_relative_to(place) for place in _HIDDEN)
    }
    return sorted(str(path) for path in hidden if not hidden & set(path.parents))
