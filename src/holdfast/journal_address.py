"""Where the coordinator's journal is kept if not in the run directory: etcd://HOST:PORT/PREFIX.

The address holds no secret: names of users, passwords and keys are not part of it.
"""

import re
from typing import NamedTuple

from holdfast.addresses import host_port, parse_host_port
from holdfast.errors import ConfigError

EXPECTED = "an address such as etcd://HOST:2379,HOST:2379/PREFIX, or etcds:// for TLS"
_MOST_ENDPOINTS = 9
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._=+-]*"
_ADDRESS = re.compile(
    rf"(?=.{{1,1000}}\Z)(?P<scheme>etcds?)://(?P<hosts>[^/]+)/(?P<prefix>{_SEGMENT}(?:/{_SEGMENT})*)/?"
)


class JournalAddress(NamedTuple):
    """What an address names."""

    endpoints: tuple[tuple[str, int], ...]
    prefix: str  # of all keys of the run
    tls: bool

    def __str__(self) -> str:
        hosts = ",".join(host_port(*each) for each in self.endpoints)
        return f"{'etcds' if self.tls else 'etcd'}://{hosts}/{self.prefix}"


def parse_journal_address(text: str, where: str) -> JournalAddress:
    """ConfigError, with ``where`` it was given, if it is none that can be used."""
    match = _ADDRESS.fullmatch(text)
    hosts = match["hosts"].split(",") if match else []
    if match is None or len(hosts) > _MOST_ENDPOINTS:
        shown = text if text.isprintable() else repr(text)
        raise ConfigError(f"{where}={shown}: expected {EXPECTED}")
    endpoints = tuple(dict.fromkeys(parse_host_port(each, where) for each in hosts))
    return JournalAddress(endpoints, match["prefix"], match["scheme"] == "etcds")
