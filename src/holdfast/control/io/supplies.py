"""What other machines are given: a ticket to come in with, the job, and a way for files."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.addresses import is_loopback, parse_host_port
from holdfast.auth.ticket import Ticket, write_ticket
from holdfast.bundle.named_files import NAME
from holdfast.bundle.packing import JobBundle, pack
from holdfast.bundle.serving import BundleServer, keep
from holdfast.bundle.unpacking import cached, default_cache, manifest_of_unpacked
from holdfast.config import RunConfig
from holdfast.control.io.succession.run_journal import LeftBehind
from holdfast.errors import ConfigError, HoldfastError
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
        left: LeftBehind | None = None,
    ) -> None:
        """``left``: by whom it was packed before; then it may be on this machine as it was sent."""
        self._config, self._ticket_path = config, ticket
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.bundle = BundleServer(None)
        if left is not None:
            self.bundle = _served_again(left.facts.bundle, job, warn)
        elif (packed := self._packed(job, warn)) is not None:
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

    @contextmanager
    def kept_if_it_begins(self) -> Iterator[None]:
        """Else no copy of the job stays behind."""
        try:
            yield
        except HoldfastError:
            self.leave()
            self.close()
            raise

    def leave(self) -> None:
        """The ticket is somebody else's: who has taken over, or was there before."""
        self._ticket_path = None

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
            more = self._config.control.standby_addresses
            write_ticket(path, Ticket(host, port, access.secret, access.certificate, more))
        except OSError as why:
            raise ConfigError(f"ticket {path}: cannot be written ({why.strerror})") from why

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
        if self._ticket_path is not None:
            self._ticket_path.unlink(missing_ok=True)


def _served_again(sha256: str, job: JobSource, warn: Callable[[str], None]) -> BundleServer:
    """From this machine's cache, or from the job's own files if they are as they were."""
    root = cached(default_cache(os.environ), sha256) if sha256 else None
    manifest = None if root is None else manifest_of_unpacked(root)
    if root is not None and manifest is not None:
        return BundleServer(JobBundle(manifest, root))
    with suppress(ConfigError):
        packed = pack(job) if sha256 else None
        if packed is not None and packed.sha256 == sha256:
            return BundleServer(packed)
    if sha256:
        warn("the job is not on this machine: machines that do not have it cannot join the run")
    return BundleServer(None, sha256)
