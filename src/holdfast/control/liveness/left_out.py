"""Machines that were left out for their links: how, and when workers are started there again.

Such a machine is fenced, and its agent comes back by itself. A worker there that could not reach
its peers would stop all others again: so the agent first tries whether the machines of the members
can be reached, after a pause that grows each time.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from holdfast.control.effects import CheckLinks, Effect, Emit
from holdfast.control.liveness.lost_machines import LostMachines
from holdfast.control.state.run import Run
from holdfast.observability import events
from holdfast.protocol.records import Address

FIRST_PAUSE_S, MOST_PAUSE_S = 2.0, 300.0
_FORGIVEN_S = 3600.0  # a machine that was in for so long begins anew with the shortest pause


@dataclass
class _Pause:
    seconds: float
    until_s: float


class LeftOutMachines:
    def __init__(self, run: Run, lost_machines: LostMachines) -> None:
        self._run, self._lost_machines = run, lost_machines
        self._waiting: dict[str, _Pause] = {}
        self._past: dict[str, _Pause] = {}  # of those that were let in again

    def leave_out(
        self, names: Sequence[str], links: Collection[tuple[str, str]], at_s: float
    ) -> list[Effect]:
        """In one change. ``links``: between machines, that are bad."""
        for name in names:
            past = self._past.pop(name, None)
            is_old = past is None or at_s - past.until_s > _FORGIVEN_S
            pause_s = FIRST_PAUSE_S if past is None or is_old else _longer(past.seconds)
            self._waiting[name] = _Pause(pause_s, at_s + pause_s)
        self._run.machines.keep_out(self._waiting)
        whys = {name: f"no connection to {_others(name, links)}, again and again" for name in names}
        return self._lost_machines.lose_together(whys, at_s)

    def tick(self, at_s: float) -> list[Effect]:
        """Let those try their links whose pause is over, and who have come back."""
        here = self._run.machines.here
        due = [name for name, one in self._waiting.items() if name in here and one.until_s <= at_s]
        for name in due:  # again, should there be no answer
            self._waiting[name].until_s = at_s + self._waiting[name].seconds
        return [CheckLinks(name, self._members()) for name in sorted(due)]

    def checked(self, name: str, unreached: Sequence[str], at_s: float) -> list[Effect]:
        """``unreached``: machines."""
        pause = self._waiting.get(name)
        if pause is None:
            return []
        if bad := sorted(self._members().keys() & set(unreached)):
            pause.seconds = _longer(pause.seconds)
            pause.until_s = at_s + pause.seconds
            told = f"machine {name} stays left out: it cannot reach {', '.join(bad)}"
            again = f"{told}; its links are tried again in {pause.seconds:g} s"
            return [Emit(events.Warned(at_s=at_s, reason=again))]
        self._past[name] = self._waiting.pop(name)
        self._run.machines.keep_out(self._waiting)
        return []

    def _members(self) -> dict[str, Address]:
        """A member on each machine, and where it is reached."""
        run, found = self._run, dict[str, Address]()
        for worker in sorted(run.stages):
            hello, name = run.hellos[worker], run.machines.of(worker) or str(worker)
            found.setdefault(name, Address(hello.host, hello.port))
        return found


def _longer(pause_s: float) -> float:
    return min(2 * pause_s, MOST_PAUSE_S)


def _others(name: str, links: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted({end for link in links if name in link for end in link} - {name}))
