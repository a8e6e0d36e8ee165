"""How much later a reduction ends when links between its members are slow.

The reduction is direct: everyone sends each owner its part, each owner sends its result to all.
So a member's sum comes to another over any owner, in two messages. Usual links are not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

from holdfast.cluster import WorkerId

ExtraLinkS = Callable[[WorkerId, WorkerId], float]
"""Sender, receiver: seconds that a message takes longer than over a usual link."""


def reduction_delays_s(
    members: Sequence[WorkerId], extra_link_s: ExtraLinkS
) -> Mapping[tuple[WorkerId, WorkerId], float]:
    """From a member's being ready to another's (or its own) having the result; absent: 0.

    One slow link alone: its two ends wait for it twice, everybody else once.
    """
    slow_s = {pair: extra_link_s(*pair) for pair in permutations(members, 2)}
    slow_s = {pair: excess_s for pair, excess_s in slow_s.items() if excess_s > 0}
    ends = {member for pair in slow_s for member in pair}
    late_s: dict[tuple[WorkerId, WorkerId], float] = {}
    for owner in ends:
        for ready in members:
            for waiting in members:
                over_s = slow_s.get((ready, owner), 0.0) + slow_s.get((owner, waiting), 0.0)
                if over_s > late_s.get((ready, waiting), 0.0):
                    late_s[ready, waiting] = over_s
    return late_s
