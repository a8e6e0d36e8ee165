"""Who is in the run, and what each worker may do next: one table.

Pure: no sockets, no threads, no clock. Stimuli come in, commands come out. Which stage a worker
holds, and what is planned when one is lost, is not known here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from holdfast.cluster import WorkerId
from holdfast.errors import HoldfastError


class WorkerPhase(Enum):
    ABSENT = auto()  # nobody runs under this name; its place may be taken
    STARTING = auto()  # asked for, has not said hello
    BUILDING = auto()  # has said hello; builds the stage it is given
    READY = auto()  # has built it, holds no current state
    COPYING = auto()  # a joiner: copies the state from a member, follows the updates
    MEMBER = auto()  # takes part in the current epoch
    LOST = auto()  # fenced off; its place may be taken
    FINISHED = auto()  # the run is over for it: its end is no loss


class Command(Enum):
    FENCE = auto()  # close its connection: it must not act any more
    REPLAN = auto()  # a member is gone
    FORGET = auto()  # a joiner is gone: nobody depends on it


@dataclass(frozen=True, slots=True)
class Stimulus:
    worker: WorkerId
    at_s: float


class Invited(Stimulus): ...


class Postponed(Stimulus): ...


class SaidHello(Stimulus): ...


class Assigned(Stimulus): ...


class IsReady(Stimulus): ...


class CopyBegun(Stimulus): ...


class StateCopied(Stimulus): ...


class Entered(Stimulus): ...


class Left(Stimulus): ...


class Ended(Stimulus): ...


class ProcessExited(Stimulus): ...


class ConnectionClosed(Stimulus): ...


class PeerComplained(Stimulus): ...


class SilentTooLong(Stimulus): ...


class GaveUp(Stimulus): ...


_NOTICES = (ProcessExited, ConnectionClosed, PeerComplained, SilentTooLong, GaveUp)
MISSING = (WorkerPhase.ABSENT, WorkerPhase.LOST)
JOINING = (WorkerPhase.STARTING, WorkerPhase.BUILDING, WorkerPhase.READY, WorkerPhase.COPYING)

_Rule = tuple[WorkerPhase, tuple[Command, ...]]
_NEXT: dict[tuple[WorkerPhase, type[Stimulus]], _Rule] = {
    (WorkerPhase.ABSENT, Invited): (WorkerPhase.STARTING, ()),
    (WorkerPhase.ABSENT, SaidHello): (WorkerPhase.BUILDING, ()),
    (WorkerPhase.STARTING, Postponed): (WorkerPhase.ABSENT, ()),  # no machine has room yet
    (WorkerPhase.LOST, Invited): (WorkerPhase.STARTING, ()),
    (WorkerPhase.LOST, SaidHello): (WorkerPhase.BUILDING, ()),
    (WorkerPhase.STARTING, SaidHello): (WorkerPhase.BUILDING, ()),
    (WorkerPhase.BUILDING, IsReady): (WorkerPhase.READY, ()),
    (WorkerPhase.READY, Entered): (WorkerPhase.MEMBER, ()),
    (WorkerPhase.READY, CopyBegun): (WorkerPhase.COPYING, ()),
    (WorkerPhase.COPYING, CopyBegun): (WorkerPhase.COPYING, ()),  # from another source
    (WorkerPhase.COPYING, StateCopied): (WorkerPhase.COPYING, ()),
    (WorkerPhase.COPYING, Entered): (WorkerPhase.MEMBER, ()),
    (WorkerPhase.MEMBER, Left): (WorkerPhase.BUILDING, ()),
    **{
        (phase, Assigned): (WorkerPhase.BUILDING, ())
        for phase in (
            WorkerPhase.BUILDING,
            WorkerPhase.READY,
            WorkerPhase.COPYING,
            WorkerPhase.MEMBER,
        )
    },
    **{(phase, Ended): (WorkerPhase.FINISHED, ()) for phase in (*JOINING, WorkerPhase.MEMBER)},
    **{
        (WorkerPhase.MEMBER, n): (WorkerPhase.LOST, (Command.FENCE, Command.REPLAN))
        for n in _NOTICES
    },
    **{
        (p, n): (WorkerPhase.LOST, (Command.FENCE, Command.FORGET))
        for p in JOINING
        for n in _NOTICES
    },
    # The first notice wins; what others say later about the same end is no news.
    **{(p, n): (p, ()) for p in (*MISSING, WorkerPhase.FINISHED) for n in _NOTICES},
}


class InvalidTransition(HoldfastError):
    def __init__(self, phase: WorkerPhase, stimulus: Stimulus, story: Iterable[str]) -> None:
        head = f"worker {stimulus.worker}: no rule for {type(stimulus).__name__} while {phase.name}"
        super().__init__("\n  ".join([head, *story]))


class Membership:
    """The life of all workers. Change it only through :meth:`handle`."""

    def __init__(self, known: Iterable[WorkerId], started: Iterable[WorkerId]) -> None:
        begun = set(started)
        self._phase = {
            w: WorkerPhase.STARTING if w in begun else WorkerPhase.ABSENT for w in sorted(known)
        }
        self._story = {w: [f"known, {phase.name}"] for w, phase in self._phase.items()}
        self._found: dict[tuple[WorkerPhase, ...], list[WorkerId]] = {}  # until somebody changes
        self._num_changes = 0

    def handle(self, stimulus: Stimulus) -> tuple[Command, ...]:
        worker = stimulus.worker
        before, kind = self._phase[worker], type(stimulus)
        if (before, kind) not in _NEXT:
            raise InvalidTransition(before, stimulus, self._story[worker])
        after, commands = _NEXT[before, kind]
        if after is not before:
            self._found.clear()
        self._phase[worker] = after
        self._num_changes += before is not after
        if (before, kind) != (after, StateCopied):  # a long copy is no news a step
            line = f"{stimulus.at_s:.2f}s {kind.__name__}: {before.name} -> {after.name}"
            self._story[worker].append(line)
        return commands

    def recall(self, phases: Mapping[WorkerId, WorkerPhase]) -> None:
        """As another coordinator has left them."""
        self._found.clear()
        for worker, phase in phases.items():
            self._phase[worker] = phase
            self._story[worker].append(f"taken over, {phase.name}")

    @property
    def num_changes(self) -> int:
        """Of phases, so far."""
        return self._num_changes

    def phase(self, worker: WorkerId) -> WorkerPhase:
        return self._phase[worker]

    def knows(self, worker: WorkerId) -> bool:
        return worker in self._phase

    def all_in(self, *phases: WorkerPhase) -> list[WorkerId]:
        """By name."""
        found = self._found.get(phases)
        if found is None:
            found = [worker for worker, phase in self._phase.items() if phase in phases]
            self._found[phases] = found
        return list(found)

    @property
    def members(self) -> list[WorkerId]:
        return self.all_in(WorkerPhase.MEMBER)

    @property
    def missing(self) -> list[WorkerId]:
        return self.all_in(*MISSING)

    @property
    def live(self) -> list[WorkerId]:
        """Those that have said hello and are not gone."""
        return self.all_in(
            WorkerPhase.BUILDING, WorkerPhase.READY, WorkerPhase.COPYING, WorkerPhase.MEMBER
        )
