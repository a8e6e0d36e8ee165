"""What an agent on another machine needs: where the run is, and what proves that it belongs to it.

A file that only its owner can read, written by the launcher and carried to each machine.
"""

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.addresses import host_port, parse_host_port
from holdfast.auth.handshake import SECRET_BYTES
from holdfast.auth.secret import write_private
from holdfast.errors import ConfigError
from holdfast.names import SHA256

VERSION = 1
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Ticket:
    host: str
    port: int
    secret: bytes = field(repr=False)
    certificate: str = ""  # SHA-256 of the launcher's; empty: it has none
    more: tuple[str, ...] = ()  # HOST:PORT where another one may take over

    @property
    def address(self) -> str:
        return host_port(self.host, self.port)


def write_ticket(path: Path, ticket: Ticket) -> None:
    write_private(path, encoded(ticket).decode())


def encoded(ticket: Ticket) -> bytes:
    values = {
        "version": VERSION,
        "address": ticket.address,
        "certificate": ticket.certificate,
        "secret": ticket.secret.hex(),
        "more": list(ticket.more),
    }
    return json.dumps(values).encode() + b"\n"


def read_ticket(path: Path) -> Ticket:
    """ConfigError: what is wrong with it. Its secret is not repeated."""
    where = f"ticket {path}"
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MOST_BYTES) if stat.S_ISREG(found.st_mode) else b""
    except OSError as why:
        raise ConfigError(
            f"{where}: cannot be read ({why.strerror}); a run over several machines writes it"
        ) from why
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"{where}: others may read it (mode {mode:04o}); chmod 600 {path}")
    return parse_ticket(data, where)


def parse_ticket(data: bytes, where: str) -> Ticket:
    expected = "expected the file that the run has written, unchanged"
    try:
        values = json.loads(data)
        version, address = values["version"], values["address"]
        secret, certificate = bytes.fromhex(values["secret"]), values["certificate"]
        more = tuple(str(each) for each in values.get("more", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{where}: is no ticket; {expected}") from None
    if version != VERSION:
        raise ConfigError(
            f"{where}: is of version {version!r}, this holdfast reads {VERSION}; "
            "use the same holdfast on all machines"
        )
    if len(secret) != SECRET_BYTES or not (certificate == "" or SHA256.fits(certificate)):
        raise ConfigError(f"{where}: is no ticket; {expected}")
    host, port = parse_host_port(str(address), f"{where}: address")
    for each in more:
        parse_host_port(each, f"{where}: more")
    return Ticket(host, port, secret, certificate, more)
