"""What other machines are given: a ticket to come in with, the job, and a way for files."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from holdfast.addresses import is_loopback, parse_host_port
from holdfast.auth.ticket import Ticket, write_ticket
from holdfast.bundle.named_files import NAME
from holdfast.bundle.packing import JobBundle, pack
from holdfast.bundle.serving import BundleServer, keep
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.job_reference import JobSource
from holdfast.planner.place.machine import MOST_MACHINES
from holdfast.protocol.spec import Access


class Supplies:
    """``ticket``: where it is written while the run is under way; None: nobody else comes.

    ConfigError: the job cannot be sent, and other machines are needed. ``warn`` is told if they may
    join and cannot have it, and of files that seem to be missing.
    """

    def __init__(
        self,
        config: RunConfig,
        job: JobSource,
        ticket: Path | None,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._config, self._ticket_path = config, ticket
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.bundle = BundleServer(None)
        if (packed := self._packed(job, warn)) is not None:
            self._scratch = tempfile.TemporaryDirectory(
                prefix="holdfast-", ignore_cleanup_errors=True
            )
            # A copy, which stays as it is while the user goes on to edit.
            self.bundle = BundleServer(keep(packed, Path(self._scratch.name)))

    def _packed(self, job: JobSource, warn: Callable[[str], None]) -> JobBundle | None:
        network, needed = self._config.network, self._ticket_path is not None
        if not needed and is_loopback(network.listen) and not network.advertise:
            return None  # nobody comes from another machine
        try:
            packed = pack(job)
        except ConfigError as why:
            if needed:
                raise
            warn(f"workers of other machines need their own copy of the job: {why}")
            return None
        for name in packed.unsent if packed else ():
            warn(f"{name} is not sent to other machines: if the job reads it, name it in {NAME}")
        return packed

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
