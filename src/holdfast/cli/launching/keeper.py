"""``python -m holdfast.cli.launching.keeper``: started by launchers on each machine; runs an agent.

Loads little: it is there beside the agent as long as the run.
"""

import os
import socket
import sys

from holdfast.cli.terminal.complaints import complain
from holdfast.cli.terminal.signals import forwarded
from holdfast.errors import ConfigError
from holdfast.launch.keeping import Keeper, agent_words, ticket_descriptor
from holdfast.launch.orders import MOST_BYTES, read_order


def main() -> int:
    try:
        order = read_order(_first_line(0))
    except ConfigError as why:
        complain(str(why))
        return why.exit_code
    descriptor = ticket_descriptor(order.ticket)
    words = agent_words(order, f"/proc/self/fd/{descriptor}", os.environ)
    name = order.name or os.environ.get(order.name_from, "") or socket.gethostname()
    label = name if order.labels else ""
    keeper = Keeper(order, words, _write, pass_fds=[descriptor], label=label)
    os.close(descriptor)
    with forwarded(keeper.pass_on):
        return keeper.run(0)


def _first_line(descriptor: int) -> bytes:
    """Byte by byte: what follows is not for us. Not whole: its launcher has gone."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MOST_BYTES:
        data = os.read(descriptor, 1)
        if not data:
            break
        line += data
    return bytes(line)


def _write(lines: bytes) -> None:
    while lines:
        lines = lines[os.write(1, lines) :]


if __name__ == "__main__":
    sys.exit(main())
