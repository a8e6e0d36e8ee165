"""What this machine has to offer: its name, cores, memory and devices. Loads no library."""

import os
import socket
from pathlib import Path

from holdfast.names import MACHINE, MOST_SLOTS


def machine_name() -> str:
    """Of the host, without its domain; 'machine' if that is no name of our form."""
    name = socket.gethostname().partition(".")[0]
    return name if MACHINE.fits(name) else "machine"


def usable_cores() -> int:
    return min(len(os.sched_getaffinity(0)), MOST_SLOTS)


def memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """That processes here may use: a container often has less than its machine."""
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = (cgroup / "memory.max").read_text().strip()
    except OSError:
        return of_machine
    return min(int(limit), of_machine) if limit.isdecimal() else of_machine


def devices(drivers: Path = Path("/proc/driver")) -> list[str]:
    """The processor, then NVIDIA's GPUs by their models, as their driver lists them."""
    gpus = sorted(drivers.glob("nvidia/gpus/*/information"))
    return ["cpu", *(_model(path) for path in gpus)]


def _model(path: Path) -> str:
    try:
        rows = (line.partition(":") for line in path.read_text().splitlines())
        return next((value.strip() for name, _, value in rows if name == "Model"), "GPU")
    except OSError:
        return "GPU"
