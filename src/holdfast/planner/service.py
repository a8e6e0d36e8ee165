"""Plans when they are needed: one at once, better ones from a thread, and some before they are.

Says when planning happens, never what a plan looks like. Who follows a plan, and when workers
change over to a better one, is not known here.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

from holdfast.errors import ConfigError, WaitTimeout
from holdfast.planner.plan import Plan
from holdfast.planner.planning import first_plan, refine
from holdfast.planner.problem import Member, Problem

# In a larger cluster the next death comes before all are prepared for.
MOST_PREPARED = 256
# Operations in all prepared plans together; each takes about 130 bytes.
MOST_PREPARED_OPS = 1_000_000
_SOON_S = 30.0
# Of a core, for background work on a cluster too large to prepare for: whoever asks must also hear
# its workers, and one interpreter serves both.
_LARGE_SHARE = 0.05
_LONGEST_SLEEP_S = 0.5  # so that the thread soon sees that nobody wants the answer any more


class DroppedError(Exception):
    """Nobody wants the answer any more."""


@dataclass(frozen=True, eq=False)  # the same question asked again is another task
class _Refining:
    problem: Problem
    key: Hashable


@dataclass(frozen=True, eq=False)
class _Preparing:
    key: Hashable
    deaths: Iterator[Problem]


_Task = _Refining | _Preparing


class Planner:
    """Asked by one thread. Background work is done by one other, which ends when there is none.

    What went wrong in the background is raised by the next call.
    """

    def __init__(self, *, plain: bool | None = None) -> None:
        self._plain = plain
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # All below is shared with the thread and changed under the lock.
        self._working = False
        self._refining: _Refining | None = None
        self._preparing: _Preparing | None = None
        self._prepared_for: Hashable = None
        self._prepared: dict[Hashable, Plan] = {}
        self._num_prepared_ops = 0
        self._given: tuple[Hashable, Plan] | None = None
        self._found: tuple[Hashable, Plan] | None = None
        self._error: Exception | None = None

    def plan_now(self, problem: Problem) -> Plan:
        """The prepared plan if this was expected, else the first. Ends work on other questions."""
        self._raise_error()
        key = question(problem)
        with self._lock:
            prepared = self._prepared.get(key)
            self._drop_others(key)
        if prepared is None:
            plan = first_plan(problem, plain=self._plain)
        else:
            plan = replace(prepared, fleet=replace(prepared.fleet, problem=problem))
        with self._lock:
            self._given = (key, plan)
        return plan

    def refine_in_background(self, problem: Problem) -> None:
        """Look for better plans; ``better`` has them. Replaces what was being refined."""
        self._raise_error()
        key = question(problem)
        with self._lock:
            if self._refining is None or self._refining.key != key:
                self._refining, self._found = _Refining(problem, key), None
            self._start()

    def better(self) -> Plan | None:
        """The best plan so far for what is refined, if it is better than the one given out last."""
        self._raise_error()
        with self._lock:
            if self._is_asked:
                self._start()  # unless it works already
            found, given, self._found = self._found, self._given, None
            if found is None:
                return None
            if given is not None and given[0] == found[0] and not _is_better(found[1], given[1]):
                return None
            self._given = found
            return found[1]

    def prepare(self, problem: Problem) -> None:
        """Plan for the death of any one worker, when nothing is to be refined.

        Replaces what was prepared. Nothing is prepared for more than 256 workers.
        """
        self._raise_error()
        key = question(problem)
        with self._lock:
            if self._prepared_for != key:
                self._prepared, self._num_prepared_ops, self._prepared_for = {}, 0, key
                self._preparing = _Preparing(key, _deaths(problem))
            self._start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until all background work is done. False if it is not within the time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._raise_error()
        is_alive = self._thread is not None and self._thread.is_alive()
        return not is_alive and not self._is_asked

    def stop(self, timeout_s: float = _SOON_S) -> None:
        """End all background work and its thread. What was found and prepared stays."""
        with self._lock:
            if self._preparing is not None:
                self._prepared_for = None  # not all of it
            self._refining = self._preparing = None
        if not self.finish(timeout_s):
            raise WaitTimeout(
                f"the planner's thread is still busy after {timeout_s:g} s: "
                "expected it to end between two trials; allow it more time"
            )

    @property
    def _is_asked(self) -> bool:
        return self._refining is not None or self._preparing is not None

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _drop_others(self, key: Hashable) -> None:
        """Work on another question than this is for a cluster that is no more."""
        if self._refining is not None and self._refining.key != key:
            self._refining = None
        if self._preparing is not None and self._preparing.key != key:
            self._preparing = self._prepared_for = None
        if self._found is not None and self._found[0] != key:
            self._found = None

    def _start(self) -> None:
        """Under the lock: a thread that is about to end either sees new work or has told so."""
        if not self._working:
            thread = threading.Thread(target=self._work, name="planner", daemon=True)
            self._working = True
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: the next call tries again
                self._working = False
            else:
                self._thread = thread

    def _work(self) -> None:
        while True:
            with self._lock:
                task = self._refining or self._preparing
                if task is None:
                    self._working = False
                    return
            try:
                self._do(task)
            except DroppedError:
                pass
            except MemoryError:  # the machine's: the first plan has to do
                self._done(task)
            except Exception as error:  # the thread's last frame: the next call raises it
                self._done(task, error)

    def _do(self, task: _Task) -> None:
        if isinstance(task, _Refining):
            self._refine(task)
        else:
            self._prepare_one(task)

    def _refine(self, task: _Refining) -> None:
        leisure = Leisure(task.problem)

        def still_wanted() -> None:
            if self._refining is not task:
                raise DroppedError

        def between() -> None:
            still_wanted()
            leisure.pause(still_wanted)

        for plan in refine(task.problem, plain=self._plain, between=between):
            with self._lock:  # never asleep: whoever asks waits for it
                still_wanted()
                self._found = (task.key, plan)
        self._done(task)

    def _prepare_one(self, task: _Preparing) -> None:
        """One death, so that refining never waits for more than one plan."""

        def between() -> None:
            if self._preparing is not task:
                raise DroppedError

        problem = next(task.deaths, None)
        if problem is None or self._num_prepared_ops > MOST_PREPARED_OPS:
            self._done(task)
            return
        try:
            plan = next(refine(problem, plain=self._plain, between=between))
        except ConfigError:
            return  # a stage is lost with it: no plan can help, and plan_now will say so
        with self._lock:
            between()
            self._prepared[question(problem)] = plan
            self._num_prepared_ops += plan.order.board.graph.num_ops

    def _done(self, task: _Task, error: Exception | None = None) -> None:
        with self._lock:
            self._error = error or self._error
            if self._refining is task:
                self._refining = None
            if self._preparing is task:
                self._preparing = None


class Leisure:
    """Pauses of a thread that must leave most of a core to others, if the cluster is large."""

    def __init__(self, problem: Problem) -> None:
        is_large = len(problem.members) > MOST_PREPARED
        self._pauses = 1 / _LARGE_SHARE - 1 if is_large else 0.0  # as often as work
        self._used_s = time.thread_time()

    def pause(self, still_wanted: Callable[[], None]) -> None:
        """In proportion to the work since the last one; ``still_wanted`` may end it."""
        if not self._pauses:
            return
        left_s = (time.thread_time() - self._used_s) * self._pauses
        while left_s > 0:
            sleep_s = min(left_s, _LONGEST_SLEEP_S)
            time.sleep(sleep_s)
            left_s -= sleep_s
            still_wanted()
        self._used_s = time.thread_time()


def question(problem: Problem) -> Hashable:
    """Equal for problems that have the same plans.

    Versions count only against each other, the dead and the order of the members not at all.
    """
    live = sorted(_live(problem), key=lambda member: member.worker)
    newest: dict[int | None, int] = {}
    for member in live:
        newest[member.stage] = max(member.version, newest.get(member.stage, member.version))
    picture = tuple(m._replace(version=int(m.version == newest[m.stage])) for m in live)
    there = {member.worker for member in live}
    limits = {w: limit for w, limit in problem.memory.limits.items() if w in there}
    unusual = {pair: link for pair, link in problem.links.unusual.items() if there.issuperset(pair)}
    memory = replace(problem.memory, limits=limits)
    links = replace(problem.links, unusual=unusual)
    return picture, _frozen(replace(problem, members=(), memory=memory, links=links))


def _live(problem: Problem) -> list[Member]:
    return [member for member in problem.members if member.speed > 0]


def _frozen(value: object) -> Hashable:
    """All fields, so that one that is added later counts too."""
    if is_dataclass(value):
        return tuple(_frozen(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    assert isinstance(value, Hashable)
    return value


def _deaths(problem: Problem) -> Iterator[Problem]:
    live = sorted(_live(problem), key=lambda member: member.worker)
    for dead in live if len(live) <= MOST_PREPARED else ():
        yield replace(problem, members=tuple(m for m in live if m is not dead))


def _is_better(found: Plan, given: Plan) -> bool:
    """Both for one question. At the same period the later one has fewer split backwards."""
    if found.period_s != given.period_s or found.routing.name != given.routing.name:
        return found.period_s <= given.period_s
    one, other = found.order, given.order
    return not (
        np.array_equal(one.layout.order, other.layout.order)
        and np.array_equal(one.board.graph.kind, other.board.graph.kind)
    )
