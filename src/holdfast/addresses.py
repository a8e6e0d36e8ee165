"""Where somebody listens: hosts and HOST:PORT, read and written in one place. Resolves nothing.

A host is a name, an IPv4 or an IPv6 address. In HOST:PORT an IPv6 address stands in brackets.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from holdfast.errors import ConfigError

HOST = "a host name, or an IPv4 or IPv6 address"
LOOPBACK = "127.0.0.1"
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}")
_HOST_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<other>[^:\[\]]*)):(?P<port>[0-9]{1,5})")


def is_host(text: object) -> bool:
    """No link-local address with its zone: that says nothing to another machine."""
    return isinstance(text, str) and (_address(text) is not None or bool(_NAME.fullmatch(text)))


def is_wildcard(host: str) -> bool:
    """All addresses of the machine that listens: none that others can call."""
    address = _address(host)
    return address is not None and address.is_unspecified


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_port(text: str, where: str) -> tuple[str, int]:
    """ConfigError, with ``where`` it was given, if it is anything else."""
    match = _HOST_PORT.fullmatch(text)
    port = int(match["port"]) if match else 0
    host = (match["other"] if match["ipv6"] is None else match["ipv6"]) if match else ""
    is_bracketed = match is not None and match["ipv6"] is not None
    if not is_host(host) or is_bracketed != (":" in host) or not 0 < port < 65536:
        shown = text if text.isprintable() else repr(text)  # one line
        raise ConfigError(
            f"{where} {shown}: expected HOST:PORT, such as 127.0.0.1:40123 or [::1]:40123"
        )
    return host, port


def _address(text: str) -> IPv4Address | IPv6Address | None:
    if ":" not in text:
        try:
            return IPv4Address(text)
        except AddressValueError:
            return None
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return None
    return None if address.scope_id is not None else address
