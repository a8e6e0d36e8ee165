"""What other machines are given: a ticket to come in with, the job, and a way for files."""

import tempfile
from pathlib import Path

from holdfast.addresses import parse_host_port
from holdfast.auth.ticket import Ticket, write_ticket
from holdfast.bundle.packing import pack
from holdfast.bundle.serving import BundleServer, keep
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.job_reference import JobSource
from holdfast.planner.place.machine import MOST_MACHINES
from holdfast.protocol.spec import Access


class Supplies:
    """``ticket``: where it is written while the run is under way; None: nobody else comes.

    ConfigError: the job cannot be sent.
    """

    def __init__(self, config: RunConfig, job: JobSource, ticket: Path | None) -> None:
        self._config, self._ticket_path = config, ticket
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.bundle = BundleServer(None)
        if ticket is not None and (packed := pack(job)) is not None:
            self._scratch = tempfile.TemporaryDirectory(
                prefix="holdfast-", ignore_cleanup_errors=True
            )
            # A copy, which stays as it is while the user goes on to edit.
            self.bundle = BundleServer(keep(packed, Path(self._scratch.name)))

    @property
    def most_agents(self) -> int:
        """That are let in."""
        if not self._config.workers.are_processes:
            return 0
        return MOST_MACHINES if self._config.machines.count else 1

    def open(self, address: str, access: Access) -> None:
        """ConfigError: the ticket cannot be written."""
        path = self._ticket_path
        if path is None:
            return
        host, port = parse_host_port(address, "network.advertise")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_ticket(path, Ticket(host, port, access.secret, access.certificate))
        except OSError as why:
            raise ConfigError(f"ticket {path}: cannot be written ({why.strerror})") from why

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
        if self._ticket_path is not None:
            self._ticket_path.unlink(missing_ok=True)
