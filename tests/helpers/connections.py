"""The data connections of a live run, seen and broken from outside, as a network would."""

import ctypes
import os
import random
import resource
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from helpers.live import LiveRun

_LISTEN, _ESTABLISHED = "0A", "01"
_PIDFD_GETFD = 438  # syscall


def _table() -> dict[int, tuple[int, int, str]]:
    """By inode: local port, remote port, state."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {
        int(row[9]): (int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16), row[3])
        for row in rows
    }


def _sockets(pid: int, table: dict[int, tuple[int, int, str]]) -> dict[int, tuple[int, int, str]]:
    """By descriptor."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue  # it was just closed
        if target.startswith("socket:["):
            inode = int(target[8:-1])
            if inode in table:
                found[int(link.name)] = table[inode]
    return found


def data_ports(pids: Iterable[int]) -> dict[int, int]:
    """By process: the port on which it takes tensors."""
    table = _table()
    return {
        pid: local
        for pid in pids
        for local, _, state in _sockets(pid, table).values()
        if state == _LISTEN
    }


def data_connections(pids: Iterable[int]) -> list[tuple[int, int]]:
    """Process and descriptor of every connection that one of them has made to another."""
    pids = list(pids)
    ports, table = set(data_ports(pids).values()), _table()
    return [
        (pid, descriptor)
        for pid in pids
        for descriptor, (_, remote, state) in _sockets(pid, table).items()
        if state == _ESTABLISHED and remote in ports
    ]


def cut(pid: int, descriptor: int, *, reset: bool) -> bool:
    """Break it: an orderly end, or a reset that throws away what is under way."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        copy = libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
    finally:
        os.close(pidfd)
    if copy < 0:
        return False  # it was closed meanwhile
    with socket.socket(fileno=copy) as connection:
        if reset:
            unspecified = ctypes.create_string_buffer(16)  # family 0: disconnect
            if libc.connect(connection.fileno(), unspecified, 16) == 0:
                return True
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True


def cut_often(live: LiveRun, num_cuts: int, dice: random.Random, pause_s: float) -> int:
    """One connection after the other, at random moments, every second one by a reset; returns how
    many were resets."""
    num_done, num_resets, first = 0, 0, dice.randrange(2)
    while num_done < num_cuts:
        assert live.launcher.poll() is None, f"ended after {num_done} cuts: {live.stderr}"
        time.sleep(dice.uniform(0, pause_s))
        connections = data_connections(live.workers.values())
        if not connections:
            continue
        reset = (first + num_done) % 2 == 0
        if cut(*dice.choice(connections), reset=reset):
            num_done, num_resets = num_done + 1, num_resets + reset
    return num_resets


def limit_descriptors(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (number, number))
