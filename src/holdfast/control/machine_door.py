"""The door for what concerns whole machines, as the coordinator is for all else."""

from collections.abc import Callable, Sequence

from holdfast.cluster import parse_worker
from holdfast.control.effects import Effect
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.run import Run
from holdfast.protocol import messages

Guarded = Callable[[Callable[[], list[Effect]], float], list[Effect]]


class MachineDoor:
    """``guarded``: what goes wrong behind it ends the run in good order."""

    def __init__(self, run: Run, parts: CoordinatorParts, guarded: Guarded) -> None:
        self._run, self._parts, self._guarded = run, parts, guarded

    def came(
        self, hello: messages.AgentHello, at_s: float, *, is_own: bool = False
    ) -> list[Effect]:
        """ConfigError: there is no place for it. ``is_own``: the coordinator is on it as well."""
        coming = self._parts.coming_machines
        coming.check(hello, at_s)
        # The one before it under this name is silent: it is lost now.
        lost = self.lost(hello.machine, "another agent has come in its place", at_s)
        return [*lost, *self._guarded(lambda: coming.came(hello, at_s, is_own=is_own), at_s)]

    def seat_of(self, worker: str) -> str:
        """The machine that it was started on last; empty: it is lost, or nobody has."""
        return self._run.machines.of(parse_worker(worker))

    def spoke(self, name: str, at_s: float) -> None:
        self._run.machines.spoke(name, at_s)

    def lost(self, name: str, why: str, at_s: float) -> list[Effect]:
        if name not in self._run.machines.here:
            return []
        return self._guarded(lambda: self._parts.lost_machines.lose(name, why, at_s), at_s)

    def checked(self, name: str, unreached: Sequence[str], at_s: float) -> list[Effect]:
        """One that was left out for its links has tried them."""
        return self._guarded(lambda: self._parts.left_out.checked(name, unreached, at_s), at_s)

    def drain(self, name: str, reason: str, at_s: float) -> list[Effect]:
        """ConfigError: it cannot be done."""
        draining = self._parts.draining
        draining.check(name)
        return self._guarded(lambda: draining.ask(name, reason, at_s), at_s)
