"""What the keeper of an agent is told over its standard input: a line of JSON, and later a word.

By standard input, not by the command line, which all on a machine can read: it holds the ticket.
"""

import json
from dataclasses import asdict, dataclass

from holdfast.errors import ConfigError

MOST_BYTES = 1 << 20
STOP = b"stop\n"


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """``name``: of the machine; ``name_from``: a variable there that holds it. Else the host's.

    ``outlives``: an agent whose launcher is gone stays, as a standby may take over; else it ends.
    """

    ticket: str  # what is in the file
    command: str = "agent"  # or another one that takes a ticket
    slots: int | None = None
    advertise: str = ""
    name: str = ""
    name_from: str = ""
    labels: bool = False  # its lines get the machine's name in front
    outlives: bool = False
    grace_s: float = 10.0  # from being told to end to being killed

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_order(line: bytes) -> AgentOrder:
    try:
        return AgentOrder(**json.loads(line))
    except (ValueError, TypeError) as why:
        raise ConfigError(
            "the keeper of an agent got no order over its standard input; it is started by a "
            "launcher, not by hand"
        ) from why


def outlives(ticket: str) -> bool:
    """There are standbys."""
    try:
        return bool(json.loads(ticket).get("more"))
    except (ValueError, AttributeError):
        return False
