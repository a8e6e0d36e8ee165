"""The launcher's port, open before any worker starts, and where others find it."""

import errno
import socket
from dataclasses import dataclass

from holdfast.addresses import LOOPBACK, host_port, is_wildcard
from holdfast.auth.certificate import TlsKey
from holdfast.auth.tls import TlsListener
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.host.network import open_listener, told_host

_BACKLOG = 4096  # workers that come all at once; the system may have a lower limit


@dataclass(frozen=True, slots=True)
class Whereabouts:
    host: str  # for the processes of this machine
    port: int
    told: str  # HOST:PORT, for all others


def listen(config: RunConfig, key: TlsKey | None = None) -> socket.socket:
    """``key``: TLS is spoken there."""
    host, port = config.network.listen, config.control.port
    try:
        return listen_on(host, port, key)
    except OSError as why:
        if why.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError(
                f"control.port={port}: cannot listen on {host} ({why.strerror}); "
                "choose another port, or 0 for any free one"
            ) from why
        raise ConfigError(
            f"network.listen={host}: cannot listen there ({why.strerror}); expected an address "
            "of this machine, or 0.0.0.0 or :: for all of them"
        ) from why


def listen_on(host: str, port: int, key: TlsKey | None) -> socket.socket:
    """OSError: that place is taken, or none of this machine."""
    listener = open_listener(host, port, backlog=_BACKLOG)
    return listener if key is None else TlsListener.of(listener, key)


def whereabouts(config: RunConfig, listener: socket.socket) -> Whereabouts:
    bound, port = listener.getsockname()[:2]
    own = bound
    if is_wildcard(bound):
        own = LOOPBACK if listener.family == socket.AF_INET else "::1"
    told = told_host(bound, config.network.advertise)
    return Whereabouts(own, port, host_port(told, port))
