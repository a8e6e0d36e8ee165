"""``hosts.toml``: which machines there are, and how each is reached by ssh."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.addresses import HOST, is_host
from holdfast.errors import ConfigError
from holdfast.names import MACHINE

_TYPES = {"slots": int, "port": int}
_EXAMPLE = '[[host]] with address = "node-1"'


@dataclass(frozen=True, slots=True)
class SshHost:
    address: str  # as ssh takes it: a name, an address, or a Host of its configuration
    slots: int | None = None  # None: the agent's own default
    name: str = ""  # of the machine; empty: the address, if it can be a name
    user: str = ""
    port: int | None = None
    python: str = "python3"
    advertise: str = ""  # where the other machines reach it; empty: the way to the coordinator
    workdir: str = ""  # empty: where ssh comes in

    @property
    def machine(self) -> str:
        return self.name or self.address


@dataclass(frozen=True, slots=True)
class HostsFile:
    hosts: tuple[SshHost, ...]
    ssh_config: Path | None = None  # None: the user's own


def read_hosts(path: Path) -> HostsFile:
    """ConfigError, in one line, names what is wrong in it."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as why:
        raise ConfigError(f"{path}: cannot be read ({why.strerror})") from why
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise ConfigError(f"{path}: is not TOML: {why}") from why
    rows = values.pop("host", [])
    config = values.pop("ssh_config", None)
    if values or not isinstance(rows, list) or not rows:
        raise ConfigError(
            f"{path}: has {', '.join(values) or 'no hosts'}; expected {_EXAMPLE}, one or more, and "
            "perhaps ssh_config"
        )
    hosts = tuple(_host(row, f"{path}: host {at + 1}") for at, row in enumerate(rows))
    names = [host.machine for host in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{path}: two hosts are called {twice[0]}; give them different names: name = ..."
        )
    if config is not None and not isinstance(config, str):
        raise ConfigError(f"{path}: ssh_config={config!r}: expected a path")
    return HostsFile(hosts, None if config is None else path.parent / config)


def _host(row: Any, where: str) -> SshHost:
    known = [field.name for field in fields(SshHost)]
    if not isinstance(row, dict) or not isinstance(row.get("address"), str):
        raise ConfigError(f"{where}: expected {_EXAMPLE}")
    for key, value in row.items():
        if key not in known:
            raise ConfigError(f"{where}: {key} is not known; expected {', '.join(known)}")
        wanted = _TYPES.get(key, str)
        if type(value) is not wanted:
            what = "a whole number" if wanted is int else "text"
            raise ConfigError(f"{where}: {key}={value!r}: expected {what}")
    host = SshHost(**row)
    _check(host, where)
    return host


def _check(host: SshHost, where: str) -> None:
    # What begins with a dash would be an option of ssh.
    if not is_host(host.address):
        raise ConfigError(f"{where}: address={host.address!r}: expected {HOST}")
    if not MACHINE.fits(host.machine):
        raise ConfigError(
            f"{where}: {host.machine!r} cannot be its name; expected {MACHINE.what}: name = ..."
        )
    if host.user.startswith("-") or any(letter.isspace() for letter in host.user):
        raise ConfigError(f"{where}: user={host.user!r}: expected the name of a user")
    if host.slots is not None and host.slots < 1:
        raise ConfigError(f"{where}: slots={host.slots}: expected at least 1")
    if host.port is not None and not 0 < host.port < 65536:
        raise ConfigError(f"{where}: port={host.port}: expected 1 to 65535")
    if host.advertise and not is_host(host.advertise):
        raise ConfigError(f"{where}: advertise={host.advertise!r}: expected {HOST}")
