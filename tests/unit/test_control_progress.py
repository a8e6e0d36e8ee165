"""A worker that is in one operation for too long: named with its stack, then lost."""

import pytest
from coordinator_world import World, emitted

from holdfast.cluster import WorkerId
from holdfast.control import progress as p
from holdfast.control.effects import AskStack, Fence, ReportStuck
from holdfast.control.membership import Phase
from holdfast.control.progress import Progress
from holdfast.control.run import RunPhase
from holdfast.observability import events
from holdfast.observability.stacks import header, read_stack, stack_file, user_frame
from holdfast.protocol.messages import Heartbeat

ONE = WorkerId(0, 1)
BEAT_S = 0.2


def beat(step, *, kind="", number=-1, busy_s=0.0, longest=None) -> Heartbeat:
    return Heartbeat(
        worker=str(ONE),
        epoch=1,
        step=step,
        attempt=0,
        done=0,
        operation=kind,
        number=number,
        microbatch=2,
        busy_s=busy_s,
        longest=longest or {},
    )


class Watched:
    """One worker, and what is said of it."""

    def __init__(self, limit_s=0.0, *, usual_s=0.1, kind="F", steps=5) -> None:
        self.progress, self.kind, self.at_s = Progress(limit_s, 180.0), kind, 0.0
        self.step = steps
        for step in range(steps + 1):
            self.progress.note(ONE, 1, beat(step, longest={kind: usual_s}))
        self.reported_s = self.lost_s = None
        self.asked = 0

    def stuck_for(self, seconds: float, *, beat_s=BEAT_S) -> "Watched":
        busy_s = 0.0
        while busy_s < seconds:
            busy_s += beat_s
            self.at_s += beat_s
            stands = beat(self.step, kind=self.kind, number=7, busy_s=busy_s)
            self.progress.note(ONE, 1, stands)
            look = self.progress.look(self.at_s)
            self.asked += len(look.ask)
            if look.report:
                assert self.reported_s is None, "it is reported once"
                self.reported_s = busy_s
            if look.lose:
                self.lost_s = busy_s
                break
        return self


@pytest.mark.parametrize("usual_s", [0.001, 0.1, 2.0, 30.0])
def test_it_is_named_within_3_times_the_longest_usual_one_and_2_s(usual_s) -> None:
    watched = Watched(usual_s=usual_s).stuck_for(1000)
    assert 3 * usual_s < watched.reported_s <= 3 * usual_s + 2
    assert watched.reported_s < watched.lost_s
    assert watched.asked == 1


@pytest.mark.parametrize(
    ("kind", "usual_s", "lost_s"),
    [("F", 0.01, 15), ("optimizer", 0.01, 15), ("load", 0.01, 30), ("F", 4.0, 40), ("load", 5, 50)],
)
def test_it_is_lost_after_10_times_the_longest_usual_one_or_a_floor(kind, usual_s, lost_s) -> None:
    watched = Watched(usual_s=usual_s, kind=kind).stuck_for(1000)
    assert watched.lost_s == pytest.approx(lost_s, abs=0.5)


def test_a_limit_of_the_users_own_counts() -> None:
    assert Watched(3.0).stuck_for(100).lost_s == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize("steps", [0, 1])
def test_first_steps_may_compile_as_long_as_a_start_takes(steps) -> None:
    watched = Watched(2.0, steps=steps).stuck_for(170)
    assert watched.lost_s is None
    assert watched.reported_s == pytest.approx(p.FIRST_REPORT_S, abs=1)
    assert Watched(2.0, steps=steps).stuck_for(200).lost_s == pytest.approx(180, abs=1)


def test_a_slow_operation_that_ends_teaches_what_is_usual() -> None:
    watched = Watched(usual_s=0.1).stuck_for(3.0)
    assert watched.reported_s is not None
    watched.progress.note(ONE, 1, beat(6, longest={"F": 3.0}))
    watched.reported_s = None
    assert watched.stuck_for(8.0).reported_s is None


def test_who_waits_for_others_is_not_stuck() -> None:
    watched = Watched(kind="")
    assert watched.stuck_for(1000).reported_s is None


def test_a_machine_that_stood_still_is_not_stuck() -> None:
    """One heartbeat, then the next after a minute: the whole process was stopped."""
    watched = Watched().stuck_for(120, beat_s=60)
    assert watched.lost_s is None


def test_many_short_operations_are_no_long_one() -> None:
    watched = Watched()
    for number in range(500):
        watched.progress.note(ONE, 1, beat(5, kind="F", number=number, busy_s=0.1))
        watched.at_s += BEAT_S
        assert watched.progress.look(watched.at_s) == p.Look()


# --- in a run ---


def test_a_stuck_member_is_reported_and_lost_and_the_others_go_on() -> None:
    world = World(2).start()
    for actor in world.live():
        actor.longest = {"load": 0.05}
    world.step(4)
    stuck = world.actors["1.0"]
    stuck.operation, stuck.number, stuck.since_s, stuck.mute = "load", 3, world.at_s, True
    effects = world.tick(40.0)
    [asked] = [effect for effect in effects if isinstance(effect, AskStack)]
    [report] = [effect for effect in effects if isinstance(effect, ReportStuck)]
    assert asked.worker == WorkerId(1, 0)
    assert (report.event.worker, report.event.operation) == ("1.0", "load")
    assert report.event.seconds <= 3 * 0.05 + 2
    assert [e.worker for e in effects if isinstance(e, Fence)] == [WorkerId(1, 0)]
    [lost] = emitted(world.effects, events.WorkerLost)
    assert lost.cause.startswith("stuck in loading data for 30.")
    del world.actors["1.0"]
    world.pump()
    assert world.phase("1.0") is Phase.LOST
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


# --- stacks ---

DUMP = """
Thread 0x00007f00000000aa (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait

Current thread 0x00007f00000000bb (most recent call first):
  File "<frozen importlib>", line 1 in load
  File "/home/me/data.py", line 33 in __getitem__
  File "/home/me/job.py", line 3 in more
"""


def test_the_stack_is_that_of_the_thread_that_computes(tmp_path) -> None:
    path = stack_file(tmp_path, "0.1", 77)
    path.parent.mkdir()
    path.write_text(header("0.1", 77, 0x7F00000000BB) + DUMP)
    stack = read_stack(path)
    assert len(stack.splitlines()) == 3
    assert user_frame(stack) == "data.py:33 in __getitem__"


@pytest.mark.parametrize(
    "text", ["", "garbage\n", header("0.1", 77, 1), header("0.1", 7, 1) + DUMP]
)
def test_no_stack_is_no_error(tmp_path, text) -> None:
    path = tmp_path / "stack"
    assert read_stack(path) == ""
    path.write_text(text)
    assert (read_stack(path), user_frame("")) == ("", "")
