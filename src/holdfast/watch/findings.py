"""What is said of a watched job: each finding as it is made, and the summary at its end.
Pure; what is slow is found in ``detection``, what is seen comes from ``gathering``."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from holdfast.detection.diagnosis import Diagnosis, Over
from holdfast.detection.live.waiting import ALL, NETWORK, WaitWatcher
from holdfast.watch.gathering import Gathering, IterationRow
from holdfast.watch.iteration import REPEATS
from holdfast.watch.records import Call, RankHello, Record

_NUM_TIMES = 1000  # of the last iterations, for the median
_NUM_CALLS_SHOWN = 5  # one by one; more are counted by name


class WatchReport:
    """Records in, lines out."""

    def __init__(self, say: Callable[[str], None], *, verbose: bool = False) -> None:
        """``verbose``: with the evidence of each finding."""
        self._say, self._verbose = say, verbose
        self.gathering = Gathering()
        self._watcher: WaitWatcher | None = None
        self._took_s: list[float] = []
        self._found: list[dict[str, Any]] = []
        self._open: dict[str, dict[str, Any]] = {}  # by subject: not over yet
        self._last_iteration = 0
        self._counted_anew = 0
        self._failed: str | None = None
        self._num_lost: Counter[int] = Counter()  # calls that a rank could not tell
        self._num_dropped = 0  # iterations, of jobs that were started again since
        self._num_unread = 0
        self._hook_faults: tuple[int, str] = (0, "")

    def join(self, hello: RankHello) -> None:
        if hello.rank in self.gathering.streams:
            self._say(f"rank {hello.rank} has started again: iterations are counted from 1 again")
            self._num_dropped += self.gathering.num_dropped
            self.gathering, self._watcher, self._counted_anew = Gathering(), None, 0
        self.gathering.join(hello)

    def add(self, rank: int, record: Record) -> None:
        if self._failed is None and rank in self.gathering.streams:
            for row in self.gathering.add(rank, record):
                self._judge(row)

    def lost(self, rank: int, num: int) -> None:
        self._num_lost[rank] += num

    def unread(self, num_lines: int, hook_faults: tuple[int, str]) -> None:
        """At the end: lines that were not kept; processes whose hooks failed, and where it is."""
        self._num_unread, self._hook_faults = num_lines, hook_faults

    def leave(self, rank: int) -> None:
        self.gathering.leave(rank)

    @property
    def has_failed(self) -> bool:
        return self._failed is not None

    def give_up(self, why: Exception, place: str) -> None:
        """An error in here: the job goes on unwatched. ``place``: where its traceback is."""
        if self._failed is None:
            self._failed = f"watching has stopped by an error in Holdfast, see {place}: {why!r}"
            self._say(f"{self._failed}; the job goes on")

    def _judge(self, row: IterationRow) -> None:
        if row.counted_anew != self._counted_anew:
            self._count_anew(row.counted_anew)
        if self._watcher is None or not row.is_alike:
            # Another phase of the job: times before it say nothing about it.
            self._watcher = WaitWatcher(len(row.ranks))
        self._took_s = [*self._took_s[-_NUM_TIMES + 1 :], row.took_s]
        self._last_iteration = row.number
        for told in self._watcher.observe(row.number, row.busy_s, row.waited_s):
            self._tell(told, _name(told, row.ranks))

    def _count_anew(self, number: int) -> None:
        """What was taken for iterations so far were none: nor was what was found in them."""
        if self._found:
            self._say("what was said so far is void: iterations end with a step of the optimizer")
        self._counted_anew, self._watcher = number, None
        self._took_s, self._found, self._open = [], [], {}

    def _tell(self, told: Diagnosis | Over, name: str) -> None:
        known = self._open.get(name)
        if isinstance(told, Diagnosis):
            self._say(_sentence(told, name, is_known=known is not None))
            if self._verbose:
                self._say(f"  {told.evidence}")
            if known is None:
                known = self._open[name] = {"subject": name, "over_since": None}
                self._found.append(known)
            known.update(_as_finding(told))
        elif known is not None:
            self._say(f"{_are(name)} as fast as before since iteration {told.since}")
            known["over_since"] = told.since
            del self._open[name]

    def summary(self) -> str:
        if self._failed is not None:
            return self._failed
        streams = self.gathering.streams
        if not streams and self._hook_faults[0]:
            return f"nothing was seen: {self._hooks_failed()}"
        if not streams:
            return (
                "nothing was seen: no process of this command called torch.distributed "
                "(or its Python ignores PYTHONPATH, as -I and -E make it)"
            )
        num_calls = max(stream.num_calls for stream in streams.values())
        if not self._took_s:
            return (
                f"no iterations were found in {num_calls} calls of {len(streams)} ranks: the same "
                f"calls in the same order must come {REPEATS} times, on every rank"
            )
        return f"{self._seen()}; {self._found_in_words()}"

    def remarks(self) -> list[str]:
        """What the summary is to be read with: what was not seen, and why."""
        said = [
            f"{_were(num, 'call', f' of rank {rank}')} not seen: it made more than could be read"
            for rank, num in sorted(self._num_lost.items())
        ]
        num_dropped = self._num_dropped + self.gathering.num_dropped
        if num_dropped:
            dropped = _were(num_dropped, "iteration")
            said.append(f"{dropped} dropped: other ranks were too far behind")
        if self._num_unread:
            unread = _were(self._num_unread, "line", " of the job's processes")
            said.append(f"{unread} too much to keep")
        if self._hook_faults[0] and self.gathering.streams:
            said.append(f"something was not seen: {self._hooks_failed()}")
        return said

    def _hooks_failed(self) -> str:
        num, place = self._hook_faults
        processes = "1 process" if num == 1 else f"{num} processes"
        return f"an error in Holdfast's hooks in {processes} of the job, see {place}"

    def _seen(self) -> str:
        return (
            f"{_ranks(self.gathering)}, {self._last_iteration} iterations of "
            f"{median(self._took_s) * 1e3:.0f} ms ({_calls(self._pattern())})"
        )

    def _found_in_words(self) -> str:
        if not self._found:
            return "nothing was slow"
        return "; ".join(map(_in_short, self._found))

    def _pattern(self) -> Sequence[Call]:
        streams = self.gathering.streams
        return streams[min(streams)].pattern

    def report(self, command: Sequence[str], exit_code: int) -> dict[str, Any]:
        streams = self.gathering.streams
        return {
            "command": list(command),
            "exit_code": exit_code,
            "ranks": sorted(streams),
            "world_size": self.gathering.world_size,
            "calls": {str(rank): streams[rank].num_calls for rank in sorted(streams)},
            "period": [call._asdict() for call in self._pattern()] if streams else [],
            "iterations": self._last_iteration,
            "iteration_s": median(self._took_s) if self._took_s else None,
            "findings": self._found,
            "not_seen": self.remarks(),
            "hook_faults": self._hook_faults[1] or None,
        }


def _were(num: int, noun: str, of: str = "") -> str:
    return f"1 {noun}{of} was" if num == 1 else f"{num} {noun}s{of} were"


def _name(told: Diagnosis | Over, ranks: Sequence[int]) -> str:
    """Detection counts the ranks it is given from 0; here may be only some of all ranks."""
    if len(told.workers) != 1:
        return told.subject
    return f"rank {ranks[told.workers[0].pipeline]}"


def _are(name: str) -> str:
    return {ALL: f"{ALL} are", NETWORK: f"the {NETWORK} is"}.get(name, f"{name} is")


def _sentence(found: Diagnosis, name: str, is_known: bool) -> str:
    return (
        f"{_are(name)} {'still ' if is_known else ''}slow since iteration {found.since}: "
        f"x{found.factor:.2f} ({min(99, round(100 * found.confidence))} % sure)"
    )


def _as_finding(found: Diagnosis) -> dict[str, Any]:
    return {
        "cause": str(found.cause),
        "since": found.since,
        "factor": found.factor,
        "confidence": found.confidence,
        "evidence": found.evidence,
    }


def _in_short(finding: dict[str, Any]) -> str:
    over = finding["over_since"]
    until = "to the end" if over is None else f"to {over - 1}"
    return (
        f"{finding['subject']}: slow from iteration {finding['since']} {until} "
        f"(x{finding['factor']:.2f})"
    )


def _calls(pattern: Sequence[Call]) -> str:
    if len(pattern) <= _NUM_CALLS_SHOWN:
        return ", ".join(map(str, pattern))
    counts = Counter(call.op for call in pattern)
    return ", ".join(f"{count} x {op}" for op, count in counts.items())


def _ranks(gathering: Gathering) -> str:
    num_seen, num_all = len(gathering.streams), gathering.world_size
    return f"{num_seen} ranks" if num_seen == num_all else f"{num_seen} of {num_all} ranks"
