"""etcd on loopback, one node or several, each a process that can be killed and started again.

The program is the one on PATH, or that of Debian's package, unpacked into a cache without root.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.debian import fetched
from helpers.ports import held_port

LIMIT_S = 60.0


def program() -> str:
    """Where etcd is; the test is skipped if it cannot be had."""
    return shutil.which("etcd") or str(fetched("etcd", ("etcd-server",)) / "usr" / "bin" / "etcd")


def words_at(host: str, folder: str) -> list[str]:
    """A cluster of one, for others to call at port 2379 of that host."""
    client, peer = f"http://{host}:2379", f"http://{host}:2380"
    return [
        *(program(), "--name", "n0", "--data-dir", folder, "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"n0={peer}"),
    ]


class EtcdNode:
    """Keeps its ports and its data when it is started again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self.port, self.peer_port = held_port(), held_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    def start(self, peers: str, *more: str, scheme: str = "http") -> None:
        client = f"{scheme}://127.0.0.1:{self.port}"
        url = self.peer.partition("=")[2]
        words = [
            *(program(), "--name", self.name, "--data-dir", str(self._folder / self.name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", url, "--initial-advertise-peer-urls", url),
            *("--initial-cluster", peers, "--initial-cluster-token", self._folder.name),
            *("--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "error"),
            *more,
        ]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class EtcdCluster:
    def __init__(self, folder: Path, num: int) -> None:
        self.nodes = [EtcdNode(f"n{number}", folder) for number in range(num)]
        self._peers = ",".join(node.peer for node in self.nodes)

    def address(self, prefix: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"etcd://{hosts}/{prefix}"

    def start(self, *more: str) -> None:
        for node in self.nodes:
            node.start(self._peers, *more)
        for node in self.nodes:
            self._await(node)

    def _await(self, node: EtcdNode) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", node.port)):
                return
            assert time.monotonic() < deadline_s, f"{node.name} does not come up"
            time.sleep(0.02)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


@contextlib.contextmanager
def etcd_cluster(folder: Path, num: int) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(folder, num)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
