"""Who has been in one operation for far longer than such an operation ever takes. Pure.

A worker whose process is alive may still be stuck: in a data set, in a layer. Its heartbeats tell
what its own thread is busy with; what is usual is learnt for each kind of operation and stage.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId
from holdfast.observability import events
from holdfast.observability.lines import OPERATIONS
from holdfast.protocol import messages
from holdfast.protocol.records import BeatRow

REPORT_TIMES, REPORT_MORE_S = 3.0, 1.0
"""It is named after so many times the longest usual one, and so much more."""
LOSE_TIMES = 10.0  # then it is lost
LEAST_S = {"load": 30.0}  # of a limit after which it is lost: disks and networks are moody
LEAST_OTHERS_S = 15.0  # a layer may be compiled again for a new shape
FIRST_REPORT_S = 30.0  # before anything is known: the first steps compile and warm up
FIRST_STEPS = 2  # of a worker, that neither teach nor count
_MOST_AT_ONCE_S = 1.0  # between two heartbeats: a machine that was stopped is not stuck
MUTE = "mute"  # an operation, whichever it is, in which no heartbeat comes
_NUM_KEPT = 500  # heartbeats that what is usual is taken from
STACK_S = 0.3  # by then its stack is in the file


class _Longest:
    """Of the newest durations of one kind."""

    def __init__(self) -> None:
        self._num_added = 0
        # Those that no newer one is as long as, with their numbers: the longest comes first.
        self._kept: deque[tuple[int, float]] = deque()

    @property
    def longest_s(self) -> float:
        return self._kept[0][1] if self._kept else 0.0

    def add(self, took_s: float) -> None:
        while self._kept and self._kept[-1][1] <= took_s:
            self._kept.pop()
        self._kept.append((self._num_added, took_s))
        self._num_added += 1
        if self._kept[0][0] < self._num_added - _NUM_KEPT:
            self._kept.popleft()


@dataclass
class _Seen:
    """One worker, as its heartbeats tell."""

    stage: int
    first_step: int
    number: int = -1  # of the operation it is in
    kind: str = ""
    microbatch: int = -1
    step: int = 0
    told_s: float = 0.0  # how long it has been in it, by its own clock
    lasted_s: float = 0.0  # without the time in which the whole process stood still
    asked_s: float | None = None  # for its stack
    reported: bool = False
    mute_s: float = 0.0  # without a heartbeat, although its process runs

    @property
    def is_warm(self) -> bool:
        return self.step >= self.first_step + FIRST_STEPS


@dataclass(frozen=True, slots=True)
class Stall:
    """``usual_s`` 0: not known."""

    worker: WorkerId
    step: int
    kind: str
    microbatch: int
    lasted_s: float
    usual_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """What to do now: ask for the stacks of some, report some, give some up."""

    ask: list[Stall] = field(default_factory=list)
    report: list[Stall] = field(default_factory=list)
    lose: list[Stall] = field(default_factory=list)


class StuckDetector:
    def __init__(self, limit_s: float, start_limit_s: float) -> None:
        """``limit_s`` 0: learnt."""
        self._limit_s, self._start_limit_s = limit_s, start_limit_s
        self._least_s = min(REPORT_MORE_S, limit_s or REPORT_MORE_S, start_limit_s)
        self._seen: dict[WorkerId, _Seen] = {}
        self._usual: dict[tuple[str, int], _Longest] = {}  # of an operation, in a stage

    def forget(self, worker: WorkerId) -> None:
        self._seen.pop(worker, None)

    def known(self) -> Set[WorkerId]:
        return self._seen.keys()

    def note(
        self,
        worker: WorkerId,
        stage: int,
        beat: messages.Heartbeat | BeatRow,
        longest: Iterable[tuple[str, float]],
    ) -> None:
        """``longest``: of each kind that it has ended since the last heartbeat."""
        seen = self._seen.get(worker)
        if seen is None or seen.stage != stage or beat.step < seen.first_step:
            seen = self._seen[worker] = _Seen(stage, beat.step)
        seen.step = beat.step
        if seen.is_warm:
            for kind, took_s in longest:
                if kind not in OPERATIONS or not took_s >= 0:
                    continue
                usual = self._usual.get((kind, stage))
                if usual is None:
                    usual = self._usual[kind, stage] = _Longest()
                usual.add(took_s)
        self._note_operation(seen, beat)

    def _note_operation(self, seen: _Seen, beat: messages.Heartbeat | BeatRow) -> None:
        mute_s, seen.mute_s = seen.mute_s, 0.0
        if not beat.operation or beat.number != seen.number:
            seen.number, seen.kind, seen.microbatch = beat.number, beat.operation, beat.microbatch
            seen.told_s = seen.lasted_s = 0.0
            if not beat.operation or beat.busy_s <= mute_s / 2:  # else it is what was named before
                seen.asked_s, seen.reported = None, False
        most_s = max(_MOST_AT_ONCE_S, mute_s)
        seen.lasted_s += min(most_s, max(0.0, beat.busy_s - seen.told_s))
        seen.told_s = beat.busy_s

    def look(self, at_s: float, mute: Mapping[WorkerId, float]) -> Look:
        """``mute``: no heartbeat for so many seconds, but their processes run."""
        look = Look()
        for worker, seen in self._seen.items():
            seen.mute_s = mute.get(worker, 0.0)
            if not seen.mute_s and seen.lasted_s <= self._least_s:
                continue  # nearly all: no limit is below it
            stall = self._stall(worker, seen)
            report_s, lose_s = self._limits(seen, stall)
            if not stall.kind or stall.lasted_s <= report_s:
                continue
            if seen.asked_s is None:
                seen.asked_s = at_s
                look.ask.append(stall)
            elif not seen.reported and at_s - seen.asked_s > STACK_S:
                seen.reported = True
                look.report.append(stall)
            if seen.reported and stall.lasted_s > lose_s:
                look.lose.append(stall)
        return look

    def busy(self) -> dict[WorkerId, float]:
        """Those in an operation that has not taken too long yet, and how many seconds it may."""
        found = {}
        for worker, seen in self._seen.items():
            stall = self._stall(worker, seen)
            lose_s = self._limits(seen, stall)[1]
            if stall.kind and stall.lasted_s <= lose_s:
                found[worker] = lose_s
        return found

    def _stall(self, worker: WorkerId, seen: _Seen) -> Stall:
        """What it is in; no kind: in nothing."""
        if not seen.mute_s:
            usual_s = self._usual_s(seen, [seen.kind])
            return Stall(worker, seen.step, seen.kind, seen.microbatch, seen.lasted_s, usual_s)
        # What the last heartbeat told of may be over.
        usual_s = self._usual_s(seen, OPERATIONS)
        return Stall(worker, seen.step, MUTE, -1, seen.mute_s, usual_s)

    def _usual_s(self, seen: _Seen, kinds: Iterable[str]) -> float:
        known = [self._usual.get((kind, seen.stage)) for kind in kinds if seen.is_warm]
        return max((one.longest_s for one in known if one is not None), default=0.0)

    def _limits(self, seen: _Seen, stall: Stall) -> tuple[float, float]:
        """Seconds after which it is reported, and lost."""
        usual_s = stall.usual_s
        if not usual_s:
            return min(FIRST_REPORT_S, self._start_limit_s), self._start_limit_s
        report_s = REPORT_TIMES * usual_s + REPORT_MORE_S
        loads = stall.kind == MUTE and ("load", seen.stage) in self._usual
        least_s = LEAST_S.get("load" if loads else stall.kind, LEAST_OTHERS_S)
        lose_s = self._limit_s or max(least_s, LOSE_TIMES * usual_s)
        return min(report_s, lose_s), lose_s


def stuck_event(stall: Stall, at_s: float) -> events.WorkerStuck:
    return events.WorkerStuck(
        at_s=at_s,
        worker=str(stall.worker),
        step=stall.step,
        operation=stall.kind,
        microbatch=stall.microbatch,
        seconds=stall.lasted_s,
        usual_s=stall.usual_s,
    )


def stuck_words(stall: Stall) -> str:
    return f"stuck in {OPERATIONS.get(stall.kind, stall.kind)} for {stall.lasted_s:.1f} s"
