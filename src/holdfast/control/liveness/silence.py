"""Who has not been heard for how long, and who stands still although its process runs. Pure.

Heartbeats need the interpreter's lock, which a call into C may hold for long, and memory, which a
slow disk may hold back. So its agent looks at the process of a silent worker. One that is stopped,
or on which nobody looks, is silent; one that runs stands still, and has the limits of progress.
"""

from collections.abc import Iterable

from holdfast.cluster import WorkerId
from holdfast.control.state.timeouts import Timeouts

_MOST_AT_ONCE = 1 / 4  # of the limit: so much silence counts between two looks of the coordinator


class Silence:
    def __init__(self) -> None:
        self._spoke_s: dict[WorkerId, float] = {}  # its own last word
        self._runs_s: dict[WorkerId, float] = {}  # its agent's, since then
        self._asked_s: dict[WorkerId, float] = {}  # the agent; since then as well
        self._ticked_s: float | None = None

    def spoke(self, worker: WorkerId, at_s: float) -> None:
        self._spoke_s[worker] = at_s
        self._runs_s.pop(worker, None)
        self._asked_s.pop(worker, None)

    def runs(self, worker: WorkerId, at_s: float) -> None:
        """Its agent has looked. An answer to a question that is over says nothing."""
        if worker in self._asked_s:
            self._runs_s[worker] = at_s

    def of(self, worker: WorkerId, at_s: float) -> float:
        """Seconds without a sign of life."""
        spoke_s = self._spoke_s.setdefault(worker, at_s)
        return at_s - self._runs_s.get(worker, spoke_s)

    def late(self, workers: Iterable[WorkerId], at_s: float, limit_s: float) -> list[WorkerId]:
        """Those whose own last word was longer ago. One that was never heard is from now on."""
        spoke_s = self._spoke_s
        return [w for w in workers if at_s - spoke_s.setdefault(w, at_s) > limit_s]

    def is_look_due(self, worker: WorkerId, at_s: float, timeouts: Timeouts) -> bool:
        """Asks for one: the next is due a heartbeat later, unless there is an answer before."""
        asked_s = self._asked_s.get(worker)
        is_early = self.of(worker, at_s) <= timeouts.look_s
        if is_early or (asked_s is not None and at_s - asked_s < timeouts.beat_s):
            return False
        self._asked_s[worker] = at_s
        return True

    def standing(self, at_s: float) -> dict[WorkerId, float]:
        """Those whose process runs without a word of their own, and for how many seconds."""
        return {worker: at_s - self._spoke_s[worker] for worker in self._runs_s}

    def forgive(self, at_s: float, limit_s: float) -> float:
        """While the coordinator itself is away nobody can be heard: that is no silence.

        For how long it was.
        """
        ticked_s, self._ticked_s = self._ticked_s, at_s
        away_s = at_s - (at_s if ticked_s is None else ticked_s) - _MOST_AT_ONCE * limit_s
        if away_s <= 0:
            return 0.0
        self._spoke_s = {w: min(at_s, s + away_s) for w, s in self._spoke_s.items()}
        self._runs_s = {w: min(at_s, s + away_s) for w, s in self._runs_s.items()}
        return away_s
