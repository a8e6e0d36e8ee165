"""What this machine has to offer: its name, cores and memory."""

import os
import socket

from holdfast.names import MACHINE, MOST_SLOTS


def machine_name() -> str:
    """Of the host, without its domain; 'machine' if that is no name of our form."""
    name = socket.gethostname().partition(".")[0]
    return name if MACHINE.fits(name) else "machine"


def usable_cores() -> int:
    return min(len(os.sched_getaffinity(0)), MOST_SLOTS)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
