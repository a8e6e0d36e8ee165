"""Who has been in one operation for far longer than such an operation ever takes. Pure.

A worker whose process is alive may still be stuck: in a data set, in a layer. Its heartbeats tell
what its own thread is busy with; what is usual is learnt for each kind of operation and stage.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId
from holdfast.observability import events
from holdfast.observability.words import OPERATIONS
from holdfast.protocol import messages

REPORT_TIMES, REPORT_MORE_S = 3.0, 1.0
"""It is named after so many times the longest usual one, and so much more."""
LOSE_TIMES = 10.0  # then it is lost
LEAST_S = {"load": 30.0}  # of a limit after which it is lost: disks and networks are moody
LEAST_OTHERS_S = 15.0  # a layer may be compiled again for a new shape
FIRST_REPORT_S = 30.0  # before anything is known: the first steps compile and warm up
FIRST_STEPS = 2  # of a worker, that neither teach nor count
_MOST_AT_ONCE_S = 1.0  # between two heartbeats: a machine that was stopped is not stuck
_NUM_KEPT = 500  # heartbeats that what is usual is taken from
STACK_S = 0.3  # by then its stack is in the file


class _Longest:
    """Of the newest durations of one kind."""

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=_NUM_KEPT)
        self.longest_s = 0.0

    def add(self, took_s: float) -> None:
        leaves = len(self._kept) == _NUM_KEPT and self._kept[0] >= self.longest_s
        self._kept.append(took_s)
        self.longest_s = max(self._kept) if leaves else max(self.longest_s, took_s)


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


class Progress:
    def __init__(self, limit_s: float, start_limit_s: float) -> None:
        """``limit_s`` 0: learnt."""
        self._limit_s, self._start_limit_s = limit_s, start_limit_s
        self._seen: dict[WorkerId, _Seen] = {}
        self._usual: dict[tuple[str, int], _Longest] = {}  # of an operation, in a stage

    def forget(self, worker: WorkerId) -> None:
        self._seen.pop(worker, None)

    def known(self) -> set[WorkerId]:
        return set(self._seen)

    def note(self, worker: WorkerId, stage: int, beat: messages.Heartbeat) -> None:
        seen = self._seen.get(worker)
        if seen is None or seen.stage != stage or beat.step < seen.first_step:
            seen = self._seen[worker] = _Seen(stage, beat.step)
        seen.step = beat.step
        if seen.is_warm:
            for kind, took_s in beat.longest.items():
                if kind not in OPERATIONS or not took_s >= 0:
                    continue
                self._usual.setdefault((kind, stage), _Longest()).add(took_s)
        if not beat.operation or beat.number != seen.number:
            seen.number, seen.kind, seen.microbatch = beat.number, beat.operation, beat.microbatch
            seen.told_s = seen.lasted_s = 0.0
            seen.asked_s, seen.reported = None, False
        seen.lasted_s += min(_MOST_AT_ONCE_S, max(0.0, beat.busy_s - seen.told_s))
        seen.told_s = beat.busy_s

    def look(self, at_s: float) -> Look:
        look = Look()
        for worker, seen in self._seen.items():
            usual_s = self._usual_s(seen)
            report_s, lose_s = self._limits(seen, usual_s)
            if not seen.kind or seen.lasted_s <= report_s:
                continue
            stall = Stall(worker, seen.step, seen.kind, seen.microbatch, seen.lasted_s, usual_s)
            if seen.asked_s is None:
                seen.asked_s = at_s
                look.ask.append(stall)
            elif not seen.reported and at_s - seen.asked_s > STACK_S:
                seen.reported = True
                look.report.append(stall)
            if seen.reported and seen.lasted_s > lose_s:
                look.lose.append(stall)
        return look

    def _usual_s(self, seen: _Seen) -> float:
        known = self._usual.get((seen.kind, seen.stage)) if seen.is_warm else None
        return known.longest_s if known is not None else 0.0

    def _limits(self, seen: _Seen, usual_s: float) -> tuple[float, float]:
        """Seconds after which it is reported, and lost."""
        if not usual_s:
            return min(FIRST_REPORT_S, self._start_limit_s), self._start_limit_s
        report_s = REPORT_TIMES * usual_s + REPORT_MORE_S
        least_s = LEAST_S.get(seen.kind, LEAST_OTHERS_S)
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
