"""Which journal a run has: in its directory, or at an address."""

import os
import socket
from pathlib import Path

from holdfast.control.journal.base import Journal
from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_journal import EtcdJournal
from holdfast.control.journal.file_journal import FileJournal
from holdfast.journal_address import parse_journal_address


def open_journal(address: str, run_dir: Path, lease_s: float) -> Journal:
    """``address``: as in the setting control.journal; empty: the directory. Asks nobody yet."""
    name = f"process {os.getpid()} on {socket.gethostname()}"
    if not address:
        return FileJournal(run_dir, name)
    at = parse_journal_address(address, "control.journal")
    return EtcdJournal(at, name, lease_s=lease_s, access=EtcdAccess.of(os.environ))
