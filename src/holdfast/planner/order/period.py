"""The steady period of fixed lanes: each worker runs its lane step after step, as early as it can.

A reduction is a meeting: nobody's ends before the last holder of the stage has come to it.
"""

import numpy as np

from holdfast.arrays import Flags, Ints
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.order.order import Order
from holdfast.planner.route.routing import Routing

# After so many steps the windows' length is taken, which holds with one stage a worker.
_MOST_STEPS, _MOST_STEPS_IF_SHARED = 10, 40
_LAGS = (1, 2, 3)


def steady_period(routing: Routing, order: Order, fleet: Fleet) -> float:
    """Ticks a step in the long run; ``order.period`` if it never settles.

    On the template: pipelines that are planned as one count as equal, so the lanes may be a
    little faster, never slower.
    """
    meeting = _Meeting(routing, fleet)
    # From the starts in which the order was found it is soon settled.
    hosts = routing.template.hosts
    free = np.zeros(hosts.num_workers, np.int64)
    np.maximum.at(free, hosts.worker, order.starts[hosts.stage])
    history = [free.copy()]
    for _ in range(_MOST_STEPS_IF_SHARED if hosts.shared else _MOST_STEPS):
        free = meeting.after(order.board.replay(order.layout.order, free))
        history.append(free)
        for lag in _LAGS[: len(history) - 1]:
            growth = history[-1] - history[-1 - lag]
            if (growth == growth[0]).all():
                return float(growth[0]) / lag
    return float(order.period)


class _Meeting:
    """When each worker may go on after its reductions, from when it came to them."""

    def __init__(self, routing: Routing, fleet: Fleet) -> None:
        template = routing.template
        self._hosts, self._staggered = template.hosts, template.staggered
        self._num_stages = template.num_stages
        copies = np.ones(len(self._hosts.stage), np.int64)
        for group in routing.groups:
            width = group.members.shape[1]
            copies[group.first_host : group.first_host + width] = len(group.members)
        self._alone = copies == 1
        self._link = int(fleet.units.ticks(fleet.problem.costs.link_s))
        self._step = fleet.units.ticks(fleet.times.step)

    def after(self, came: Ints) -> Ints:
        """``came``: when each worker had done all its operations."""
        stage, worker = self._hosts.stage, self._hosts.worker
        here = came[worker]
        on = np.zeros_like(here)
        for number in range(self._num_stages):
            mine = stage == number
            others = here[mine] if self._staggered else came
            on[mine] = np.maximum(here[mine], self._last_other(here, mine, others))
        done = np.zeros_like(came)
        np.maximum.at(done, worker, on)
        # Who holds two stages takes their steps one after the other.
        np.add.at(done, worker, self._step[stage])
        return done

    def _last_other(self, here: Ints, mine: Flags, others: Ints) -> Ints:
        """When the message of the last other one is here; 0 where there is no other."""
        highest = int(others.max())
        only = int((others == highest).sum()) == 1
        below = others[others < highest]
        second = int(below.max()) if len(below) else -self._link
        is_only = only & self._alone[mine] & (here[mine] == highest)
        found: Ints = np.where(is_only, second, highest) + self._link
        return found
