"""Whether workers of a run without a coordinator are alive: they knock where it was."""

import os
import selectors
import socket
import time
from pathlib import Path

from holdfast.addresses import host_port, parse_host_port
from holdfast.auth.certificate import TlsKey, kept_key
from holdfast.auth.handshake import COORDINATOR, JOINER, Identity
from holdfast.auth.secret import write_private
from holdfast.config import RunConfig
from holdfast.control.io.entry.listening import listen, listen_on, whereabouts
from holdfast.control.io.entry.strangers import Stranger, Strangers
from holdfast.protocol.spec import ADDRESS_FILE

KNOCK_LIMIT_S = 4.0  # they try several times a second
_MOST = 64


def listen_again(config: RunConfig, address: str, key: TlsKey | None) -> socket.socket:
    """At the port that the settings name, or that of the coordinator before if it is free."""
    port = config.control.port or parse_host_port(address, "the journal: address")[1]
    try:
        return listen_on(config.network.listen, port, key)
    except OSError:
        return listen(config, key)


def write_address(run_dir: Path, config: RunConfig, listener: socket.socket) -> None:
    """For workers of this machine, if it is not where it was."""
    at = whereabouts(config, listener)
    write_private(run_dir / ADDRESS_FILE, f"{host_port(at.host, at.port)}\n")


def somebody_knocks(
    run_dir: Path, config: RunConfig, address: str, secret: bytes, generation: int
) -> bool:
    """Waits for a while. Whoever knocks is left at the door, and tries again."""
    selector = selectors.DefaultSelector()
    key = kept_key(run_dir) if config.network.encrypts_control else None
    with listen_again(config, address, key) as listener:
        if os.access(run_dir, os.W_OK):
            write_address(run_dir, config, listener)
        me = Identity(COORDINATOR, "", generation)
        strangers = Strangers(selector, listener, secret, me, _MOST)
        strangers.open()
        try:
            return _waited(selector, listener, strangers)
        finally:
            strangers.close()
            selector.close()


def _waited(
    selector: selectors.BaseSelector, listener: socket.socket, strangers: Strangers
) -> bool:
    until_s = time.monotonic() + KNOCK_LIMIT_S
    while (left_s := until_s - time.monotonic()) > 0:
        for key, _ in selector.select(left_s):
            if key.fileobj is listener:
                strangers.accept()
            elif isinstance(key.fileobj, Stranger):
                proven = strangers.read(key.fileobj)
                if proven is not None:
                    proven[1].close()
                    if proven[0].role == JOINER:
                        return True
    return False
