"""Which lanes a step runs: all workers change over in the same step, and nobody waits for nothing.

A worker's own thread begins steps; the test is the control thread.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, WaitTimeout
from holdfast.runtime.step.schedule_switch import Lanes
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule

LIMIT_S = 30.0
ME, OTHER = WorkerId(0, 0), WorkerId(1, 0)
SHAPE = Shape(2, 1, 4)


def lanes_text(share: int) -> str:
    """This worker runs the first ``share`` micro-batches, another one the rest."""
    lanes = {}
    for worker, mine in ((ME, range(share)), (OTHER, range(share, 4))):
        ops = [Op(0, kind, m) for m in mine for kind in (Kind.F, Kind.BW)]
        lanes[worker] = (*ops, Op(0, Kind.R))
    return Schedule(SHAPE, lanes).dumps()


TEXTS = [lanes_text(share) for share in range(5)]
OLD, NEW, NEWER = TEXTS[2], TEXTS[1], TEXTS[3]


class Worker:
    """Lanes, and whether the worker was told to stop."""

    def __init__(self, epoch: int = 1, first_step: int = 0) -> None:
        self.is_halted = False
        self.lanes = Lanes(self._check)
        self.lanes.start(epoch, OLD, first_step)

    def _check(self) -> None:
        if self.is_halted:
            raise EpochPast("halted")

    def of(self, step: int, timeout_s: float = LIMIT_S) -> str:
        return self.lanes.of(step, timeout_s).schedule.dumps()


class Waiting:
    """A step that is begun in a thread, and has not begun so far."""

    def __init__(self, worker: Worker, step: int) -> None:
        self._found: list[str | Exception] = []
        self._thread = threading.Thread(target=self._begin, args=(worker, step), daemon=True)
        self._thread.start()
        time.sleep(0.05)
        assert not self._found, "it did not wait"

    def _begin(self, worker: Worker, step: int) -> None:
        try:
            self._found.append(worker.of(step))
        except Exception as why:
            self._found.append(why)

    def found(self) -> str | Exception:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "it waits for ever"
        return self._found[0]


def begun(step: int, **more: int) -> Worker:
    worker = Worker(**more)
    for number in range(more.get("first_step", 0), step + 1):
        assert worker.of(number) == OLD
    return worker


def test_without_an_offer_every_step_runs_the_lanes_of_the_proceed() -> None:
    assert begun(5).of(6) == OLD


def test_an_offer_is_answered_with_the_newest_step_that_was_begun() -> None:
    assert begun(3).lanes.offer(1, 1, NEW) == 3


def test_before_any_step_is_begun_it_is_the_one_before_the_first() -> None:
    assert Worker(first_step=7).lanes.offer(1, 1, NEW) == 6


def test_after_an_offer_one_more_step_is_begun_with_the_old_lanes_and_no_other() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    assert worker.of(4) == OLD
    waiting = Waiting(worker, 5)
    worker.lanes.adopt(1, 1, 5)
    assert waiting.found() == NEW


def test_steps_before_the_first_new_one_run_the_old_lanes_also_after_the_word() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    worker.lanes.adopt(1, 1, 7)
    assert [worker.of(step) for step in range(4, 9)] == [OLD, OLD, OLD, NEW, NEW]


def test_whoever_waits_begins_with_the_old_lanes_if_others_are_further() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    waiting = Waiting(worker, 5)
    worker.lanes.adopt(1, 1, 6)
    assert waiting.found() == OLD
    assert worker.of(6) == NEW


def test_a_step_that_is_begun_again_runs_the_lanes_it_had() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    assert worker.of(4) == worker.of(4) == OLD
    worker.lanes.adopt(1, 1, 5)
    assert [worker.of(step) for step in (5, 4, 5, 3)] == [NEW, OLD, NEW, OLD]
    assert worker.lanes.offer(1, 2, NEWER) == 5, "to begin again is no progress, nor a way back"


def test_a_half_done_step_before_the_first_whole_one_may_have_to_be_begun_anew() -> None:
    worker = begun(7, first_step=6)
    assert worker.of(4) == worker.of(5) == OLD


def test_a_halt_breaks_the_wait_off() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    waiting = Waiting(worker, 5)
    worker.is_halted = True
    assert isinstance(waiting.found(), EpochPast)


def test_a_wait_has_a_limit() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    with pytest.raises(WaitTimeout, match="step 5"):
        worker.of(5, timeout_s=0.05)


def test_a_proceed_makes_an_offer_void() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    worker.lanes.start(2, NEWER, 4)
    assert worker.of(4) == worker.of(5) == worker.of(6) == NEWER
    worker.lanes.adopt(2, 1, 7)
    assert worker.of(7) == NEWER


def test_a_proceed_also_ends_what_was_adopted() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    worker.lanes.adopt(1, 1, 5)
    worker.lanes.start(2, OLD, 4)
    assert [worker.of(step) for step in (4, 5, 6)] == [OLD] * 3


@pytest.mark.parametrize(
    "act",
    [
        lambda lanes: lanes.offer(1, 2, NEW),
        lambda lanes: lanes.offer(3, 2, NEW),
        lambda lanes: lanes.adopt(1, 1, 9),
    ],
    ids=["offer", "offer too early", "adopt"],
)
def test_of_another_epoch_nothing_counts(act: Callable[[Lanes], object]) -> None:
    worker = Worker(epoch=2)
    with pytest.raises(EpochPast):
        act(worker.lanes)
    assert worker.of(0) == worker.of(9) == OLD


def test_word_of_an_older_offer_is_ignored() -> None:
    worker = begun(3)
    worker.lanes.offer(1, 1, NEW)
    worker.lanes.offer(1, 2, NEWER)
    waiting = Waiting(worker, 5)
    worker.lanes.adopt(1, 1, 5)
    worker.lanes.adopt(1, 2, 6)
    assert waiting.found() == OLD
    assert worker.of(6) == NEWER


def test_lanes_may_change_again_and_again() -> None:
    worker = begun(1)
    for number, text in enumerate(TEXTS, start=1):
        step = worker.lanes.offer(1, number, text)
        worker.lanes.adopt(1, number, step + 2)
        worker.of(step + 1)
        assert worker.of(step + 2) == text


# --- many workers ---


@dataclass
class Offering:
    """As the coordinator does it."""

    number: int
    text: str
    steps: dict[int, int] = field(default_factory=dict)  # what has been answered
    told: set[int] = field(default_factory=set)


class Fleet:
    """Workers that begin steps, and messages that come to each of them in order."""

    def __init__(self, num_workers: int) -> None:
        self.workers = [Worker() for _ in range(num_workers)]
        self.ran: list[list[str]] = [[] for _ in self.workers]  # lanes of each step so far
        self._offering: Offering | None = None
        self._num_offers = 0

    def begin(self, who: int, text: str) -> None:
        """The next step, unless it is too far ahead of the others."""
        step = len(self.ran[who])
        if step > min(map(len, self.ran)) + 2:
            return
        try:
            self.ran[who].append(self.workers[who].of(step, timeout_s=-1.0))
        except WaitTimeout:
            assert self._offering is not None, "nobody waits for nothing"
            assert who in self._offering.steps

    def begin_again(self, who: int, text: str) -> None:
        if self.ran[who]:
            step = len(self.ran[who]) - 1
            assert self.workers[who].of(step, timeout_s=-1.0) == self.ran[who][step]

    def hear(self, who: int, text: str) -> None:
        """An offer, and when all have answered, the word."""
        if self._offering is None:
            self._num_offers += 1
            self._offering = Offering(self._num_offers, text)
        offering, lanes = self._offering, self.workers[who].lanes
        if who not in offering.steps:
            offering.steps[who] = lanes.offer(1, offering.number, offering.text)
        elif len(offering.steps) == len(self.workers) and who not in offering.told:
            lanes.adopt(1, offering.number, max(offering.steps.values()) + 2)
            offering.told.add(who)
        if len(offering.told) == len(self.workers):
            self._offering = None


ACTS = [Fleet.begin, Fleet.begin, Fleet.begin, Fleet.begin_again, Fleet.hear, Fleet.hear]


@settings(deadline=None, max_examples=200)
@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from(ACTS), st.integers(0, 11), st.sampled_from(TEXTS)), max_size=120
    ),
)
def test_no_two_workers_ever_run_a_step_with_different_lanes(num_workers, happenings) -> None:
    """Steps, offers and words: in any order that messages can come in."""
    fleet = Fleet(num_workers)
    for act, who, text in happenings:
        act(fleet, who % num_workers, text)
    for step in range(max(map(len, fleet.ran))):
        found = {lanes[step] for lanes in fleet.ran if step < len(lanes)}
        assert len(found) == 1, f"step {step}"


def test_the_messages_above_do_change_lanes() -> None:
    fleet = Fleet(2)
    for text in (NEW, NEWER):
        for act in (Fleet.begin, Fleet.hear, Fleet.hear, Fleet.begin, Fleet.begin):
            for who in (0, 1):
                act(fleet, who, text)
    assert fleet.ran == [[OLD, OLD, NEW, NEW, NEW, NEWER]] * 2
