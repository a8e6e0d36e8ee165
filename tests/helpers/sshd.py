"""Real sshd's on loopback ports, with keys and settings of their own: Debian's openssh-server.

It is not installed: its package is fetched once into a cache and unpacked there.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.debian import fetched
from helpers.ports import held_port

LIMIT_S = 30.0
_PACKAGES = ("openssh-server", "libwrap0")
# As root, sshd wants a user of its own and a directory in /run: it gets them for itself alone.
_AS_ROOT = """
mount -t tmpfs none /run && mkdir -m 755 /run/sshd && mount --bind "$1" /etc/passwd
shift; exec "$@"
"""


@dataclass
class Sshd:
    """One of them. Whoever comes in is the user who runs the tests."""

    name: str
    port: int
    folder: Path
    binaries: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        libraries = self.binaries / "usr" / "lib" / "x86_64-linux-gnu"
        words = [str(self.binaries / "usr/sbin/sshd"), "-D", "-e", "-f", str(self.folder / "conf")]
        if os.geteuid() == 0:
            words = ["unshare", "-m", "sh", "-ec", _AS_ROOT, "sh", f"{self.folder}/passwd", *words]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            )
        deadline_s = time.monotonic() + LIMIT_S
        while not self._answers():
            if self.process.poll() is not None:
                pytest.skip(f"sshd does not run here: {(self.folder / 'log').read_text()[-300:]}")
            assert time.monotonic() < deadline_s, "sshd does not come up"
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """No new connections; those that are there stay."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(LIMIT_S)
            self.process = None


@contextmanager
def sshds(folder: Path, num: int) -> Iterator[tuple[list[Sshd], Path]]:
    """And a configuration of ssh that knows each of them by its name, s0, s1, ..."""
    binaries = fetched("sshd", _PACKAGES)
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("ssh is not installed")
    _make_key(folder / "key")
    servers = [_server(folder, f"s{at}", binaries) for at in range(num)]
    config = folder / "ssh_config"
    config.write_text("".join(_client(folder, server) for server in servers))
    known = [f"[127.0.0.1]:{s.port} {(s.folder / 'host_key.pub').read_text()}" for s in servers]
    (folder / "known_hosts").write_text("".join(known))
    try:
        for server in servers:
            server.start()
        yield servers, config
    finally:
        for server in servers:
            server.stop()


def _make_key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(words, check=True)


def _server(folder: Path, name: str, binaries: Path) -> Sshd:
    own = folder / name
    own.mkdir()
    _make_key(own / "host_key")
    port = held_port()
    (own / "keys").write_text((folder / "key.pub").read_text())
    (own / "passwd").write_text(
        Path("/etc/passwd").read_text() + "sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (own / "conf").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {own}/host_key\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {own}/keys\nStrictModes no\nPasswordAuthentication no\n"
        "PermitRootLogin yes\nUseDNS no\n"
    )
    return Sshd(name, port, own, binaries)


def _client(folder: Path, server: Sshd) -> str:
    return (
        f"Host {server.name}\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"  IdentityFile {folder}/key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
    )
