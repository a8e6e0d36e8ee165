"""The launcher's port, open before any worker starts."""

import socket

from holdfast.config import RunConfig
from holdfast.errors import ConfigError


def listen(config: RunConfig) -> socket.socket:
    control = config.control
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((control.host, control.port))
        sock.listen(256)
    except OSError as why:
        sock.close()
        raise ConfigError(
            f"control.port={control.port}: cannot listen on {control.host} ({why.strerror}); "
            "choose another port, or 0 for any free one"
        ) from why
    return sock
