"""Links that are made slower on purpose. No promise of a transport: for injected faults only."""

import math
from typing import NamedTuple, Protocol

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.transport.base import Transport


class LinkShaping(NamedTuple):
    """How a link is made slower on purpose: as if it were longer, or narrower."""

    delay_s: float = 0.0
    bytes_s: float = math.inf

    @classmethod
    def checked(cls, peer: WorkerId, delay_s: float, bytes_s: float) -> "LinkShaping":
        if not (0 <= delay_s < math.inf and bytes_s > 0):
            raise ConfigError(
                f"link to worker {peer}: delay_s={delay_s} bytes_s={bytes_s}: "
                "need a delay of 0 or more and a rate above 0 (0 and inf: not slower)"
            )
        return cls(delay_s, bytes_s)


UNSHAPED = LinkShaping()


class FaultyLinks(Protocol):
    """What both transports can do besides their promises."""

    def shape_link(self, peer: WorkerId, delay_s: float = 0.0, bytes_s: float = math.inf) -> None:
        """Make what is sent to ``peer`` from now on arrive later, or at most at that rate.

        Order is kept, and messages are delayed side by side, not one after the other. Held
        messages wait to leave, to every other promise here. Stays until it is taken off, by
        the defaults, whoever comes or goes; what is held already keeps its time.
        """
        ...


class FaultyTransport(Transport, FaultyLinks, Protocol):
    """A transport into whose links faults may be injected."""
