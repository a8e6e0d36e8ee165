"""Which journal a run has: in its directory, or at an address."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from holdfast.auth.secret import write_private
from holdfast.control.journal.base import Journal
from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_journal import EtcdJournal
from holdfast.control.journal.file_journal import FileJournal
from holdfast.errors import ConfigError
from holdfast.journal_address import parse_journal_address

_KEPT_AT = "journal.address"  # in the run directory: where it is, if not there


def open_journal(address: str, run_dir: Path, lease_s: float) -> Journal:
    """``address``: as in the setting control.journal; empty: the directory. Asks nobody yet."""
    name = f"process {os.getpid()} on {socket.gethostname()}"
    if not address:
        return FileJournal(run_dir, name)
    at = parse_journal_address(address, "control.journal")
    return EtcdJournal(at, name, lease_s=lease_s, access=EtcdAccess.of(os.environ))


def note_journal(run_dir: Path, address: str) -> None:
    """For whoever resumes the run and is told of its directory only."""
    if address:
        write_private(run_dir / _KEPT_AT, f"{address}\n")
    else:
        (run_dir / _KEPT_AT).unlink(missing_ok=True)


def noted_journal(run_dir: Path) -> str:
    """Empty: it is in the run directory."""
    with suppress(OSError, UnicodeDecodeError, ConfigError):
        address = (run_dir / _KEPT_AT).read_text().strip()
        return str(parse_journal_address(address, "the run's journal"))
    return ""
