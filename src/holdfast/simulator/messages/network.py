"""Connections between simulated machines: delays, partitions, and what is lost when one breaks.

What is said on one connection keeps its order; between connections anything may overtake. Behind a
partition words wait, as they do in a kernel, and come when it is over.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from holdfast.protocol import messages
from holdfast.simulator.messages.virtual_time import VirtualTime

Pair = tuple[str, str]


def pair_of(one: str, other: str) -> Pair:
    return (one, other) if one <= other else (other, one)


class LineEnd(Protocol):
    def hear(self, line: "ControlLine", message: messages.Message) -> None: ...

    def hung_up(self, line: "ControlLine") -> None: ...


class FarEnd(LineEnd, Protocol):
    def admit(self, line: "ControlLine", generation: int) -> None: ...


class VirtualNetwork:
    """``delay_s``: of a word; a part of them, ``slow_words``, takes far longer."""

    def __init__(
        self, time: VirtualTime, dice: random.Random, delay_s: float, slow_words: float = 0.02
    ) -> None:
        self.time, self._dice, self._delay_s = time, dice, delay_s
        self._slow_words = slow_words
        self.delays_s: tuple[float, ...] = ()  # measured ones: they are drawn from
        self._cut: dict[Pair, int] = {}  # partitions that are under way
        self._waiting: list[Callable[[], None]] = []  # to be tried when one is over
        self._last_s: dict[tuple[int, int], float] = {}  # arrival of the last tensor of a link

    def draw_delay_s(self) -> float:
        if self.delays_s:
            return self._dice.choice(self.delays_s)
        random = self._dice.random
        slow = 30.0 if random() < self._slow_words else 1.0
        return self._delay_s * slow * (0.5 + random())

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self._cut) and one != other and self._cut.get(pair_of(one, other), 0) > 0

    def cut(self, one: str, other: str) -> None:
        pair = pair_of(one, other)
        self._cut[pair] = self._cut.get(pair, 0) + 1

    def mend(self, one: str, other: str) -> None:
        pair = pair_of(one, other)
        self._cut[pair] -= 1
        if not self._cut[pair]:
            del self._cut[pair]
            waiting, self._waiting = self._waiting, []
            for again in waiting:
                again()

    def when_mended(self, again: Callable[[], None]) -> None:
        self._waiting.append(again)

    def arrival_s(self, source: int, to: int, takes_s: float = 0.0) -> float:
        """Of a tensor that is sent now, after all that were sent on the link before."""
        at_s = max(self.time.now_s + self.draw_delay_s(), self._last_s.get((source, to), 0.0))
        at_s += takes_s
        self._last_s[source, to] = at_s
        return at_s


class _Way:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self.held: list[Any] = []
        self.on_the_way: deque[Any] = deque()


class _Knock(NamedTuple):
    generation: int


_BYE = object()


class ControlLine:
    """A control connection. ``near``: a worker or an agent; ``far``: a coordinator."""

    def __init__(
        self, network: VirtualNetwork, near: LineEnd, machine: str, role: str, name: str
    ) -> None:
        self._network, self.near, self._machine = network, near, machine
        self.role, self.name = role, name
        self._far: FarEnd | None = None
        self._far_machine = ""
        self._up, self._down = _Way(), _Way()
        self.near_is_open = self.far_is_open = True
        self.num_heard = 0  # by the coordinator

    def connect(self, far: FarEnd, machine: str, generation: int) -> None:
        """``generation``: of the coordinator that it belongs to; 0: it does not know."""
        self._far, self._far_machine = far, machine
        self._put(self._up, _Knock(generation), self._at_far)

    # --- from the worker or agent ---

    def say(self, message: messages.Message) -> None:
        if self.near_is_open:
            self._put(self._up, message, self._at_far)

    def leave(self) -> None:
        """The process is gone, or hangs up."""
        if self.near_is_open:
            self.near_is_open = False
            self._put(self._up, _BYE, self._at_far)

    def lose_power(self) -> None:
        """Without a word."""
        self.near_is_open = False

    # --- from the coordinator ---

    def tell(self, message: messages.Message) -> None:
        if self.far_is_open:
            self._put(self._down, message, self._at_near)

    def hang_up(self) -> None:
        if self.far_is_open:
            self.far_is_open = False
            self._put(self._down, _BYE, self._at_near)

    # --- on the way ---

    def _put(self, way: _Way, what: Any, arrive: Callable[[Any], None]) -> None:
        network = self._network
        if network.is_cut(self._machine, self._far_machine) or way.held:
            if not way.held:
                network.when_mended(lambda: self._release(way, arrive))
            way.held.append(what)
            return
        way.last_s = max(network.time.now_s + network.draw_delay_s(), way.last_s)
        way.on_the_way.append(what)
        network.time.at(way.last_s, arrive, what)

    def _release(self, way: _Way, arrive: Callable[[Any], None]) -> None:
        held, way.held = way.held, []
        for what in held:
            self._put(way, what, arrive)

    def last_words(self) -> list[messages.Message]:
        """What was said, and is read only now that the connection is closed."""
        heard, self._up.on_the_way = list(self._up.on_the_way), deque()
        return [what for what in heard if what is not _BYE and not isinstance(what, _Knock)]

    def _at_far(self, what: Any) -> None:
        if self._up.on_the_way and self._up.on_the_way[0] is what:
            self._up.on_the_way.popleft()
        if not self.far_is_open or self._far is None:
            return
        if what is _BYE:
            self.far_is_open = False
            self._far.hung_up(self)
        elif isinstance(what, _Knock):
            self._far.admit(self, what.generation)
        else:
            self.num_heard += 1
            self._far.hear(self, what)

    def _at_near(self, what: Any) -> None:
        if self._down.on_the_way:
            self._down.on_the_way.popleft()
        if not self.near_is_open:
            return
        if what is _BYE:
            self.near_is_open = False
            self.near.hung_up(self)
        else:
            self.near.hear(self, what)
