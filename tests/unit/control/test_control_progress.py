"""A worker that is in one operation for too long: named with its stack, then lost."""

import pytest

from helpers.harness.coordinator_world import World, emitted
from holdfast.cluster import WorkerId
from holdfast.control.effects import AskStack, Fence, LookAtWorker, ReportStuck
from holdfast.control.liveness import stuck as p
from holdfast.control.liveness.stuck import StuckDetector
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.observability import events
from holdfast.observability.stacks import header, read_stack, stack_file, user_frame
from holdfast.protocol.messages import Heartbeat, WorkerRuns

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


def note(progress: StuckDetector, told: Heartbeat) -> None:
    progress.note(ONE, 1, told, told.longest.items())


class Watched:
    """One worker, and what is said of it."""

    def __init__(self, limit_s=0.0, *, usual_s=0.1, kind="F", steps=5) -> None:
        self.progress, self.kind, self.at_s = StuckDetector(limit_s, 180.0), kind, 0.0
        self.step = steps
        for step in range(steps + 1):
            note(self.progress, beat(step, longest={kind: usual_s}))
        self.reported_s = self.lost_s = None
        self.asked = 0

    def stuck_for(self, seconds: float, *, beat_s=BEAT_S) -> "Watched":
        busy_s = 0.0
        while busy_s < seconds:
            busy_s += beat_s
            self.at_s += beat_s
            stands = beat(self.step, kind=self.kind, number=7, busy_s=busy_s)
            note(self.progress, stands)
            look = self.progress.look(self.at_s, {})
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
    note(watched.progress, beat(6, longest={"F": 3.0}))
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
        note(watched.progress, beat(5, kind="F", number=number, busy_s=0.1))
        watched.at_s += BEAT_S
        assert watched.progress.look(watched.at_s, {}) == p.Look()


@pytest.mark.parametrize("usual_s", [0.001, 0.1, 2.0, 30.0])
def test_one_that_runs_without_heartbeats_has_the_limits_of_its_longest_operation(usual_s) -> None:
    watched = Watched(usual_s=usual_s, kind="load")
    note(watched.progress, beat(5, kind="F", number=1, longest={"F": usual_s / 2}))
    seconds, reported_s, lost_s = 0.0, [], None
    while lost_s is None:
        seconds += 0.05
        look = watched.progress.look(seconds, {ONE: seconds})
        reported_s += [stall.lasted_s for stall in look.report]
        lost_s = seconds if look.lose else None
    assert len(reported_s) == 1
    assert 3 * usual_s < reported_s[0] <= 3 * usual_s + 2
    assert lost_s == pytest.approx(max(30, 10 * usual_s), abs=0.5)


@pytest.mark.parametrize("number", [7, 8])
def test_it_is_named_once_if_heartbeats_come_again_in_the_same_operation(number) -> None:
    """7: the one it was in when they stopped; 8: one that it began since."""
    watched = Watched()
    note(watched.progress, beat(5, kind="F", number=7, busy_s=0.1))
    looks = [watched.progress.look(s / 10, {ONE: s / 10}) for s in range(1, 41)]
    assert sum(len(look.report) for look in looks) == 1
    note(watched.progress, beat(5, kind="F", number=number, busy_s=4.0))
    after = [watched.progress.look(4 + s / 10, {}) for s in range(1, 11)]
    assert not any(look.ask or look.report for look in after)
    note(watched.progress, beat(5, kind="F", number=number, busy_s=15.2))
    assert watched.progress.busy() == {ONE: 15.0}, "what it ran without heartbeats counts once"


# --- in a run ---


def held_world(*, usual_s=0.05, **more) -> World:
    """Steps are measured, so the heartbeat timeout is 2 s."""
    world = World(2, **more).start()
    for actor in world.live():
        actor.longest = {"load": usual_s}
    world.step(4)
    assert world.run.run.timeouts.heartbeat_timeout_s == 2.0
    return world


def test_a_silent_member_whose_process_runs_is_named_with_its_stack_and_then_lost() -> None:
    world = held_world()
    held = world.actors["1.0"]
    held.held = held.mute = True
    effects = world.tick(29.0)
    kinds = [type(e) for e in effects if isinstance(e, AskStack | ReportStuck)]
    assert kinds == [AskStack, ReportStuck]
    [report] = [effect for effect in effects if isinstance(effect, ReportStuck)]
    assert (report.event.worker, report.event.operation) == ("1.0", "mute")
    assert report.event.seconds <= 3 * 0.05 + 2
    assert not emitted(world.effects, events.WorkerLost)
    world.tick(2.0)
    [lost] = emitted(world.effects, events.WorkerLost)
    assert lost.cause.startswith("stuck in code that lets no heartbeat through for 30.")
    del world.actors["1.0"]
    world.pump()
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_silent_member_whose_process_runs_may_come_back() -> None:
    world = held_world()
    held = world.actors["1.0"]
    held.held = True
    assert [e for e in world.tick(4.0) if isinstance(e, ReportStuck)]
    held.held = False
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert not emitted(world.effects, events.WorkerLost)


def test_one_that_is_stopped_is_looked_at_and_lost_after_the_heartbeat_timeout() -> None:
    world = held_world()
    stopped = world.actors["1.0"]
    stopped.silent = stopped.mute = True
    assert not any(isinstance(e, LookAtWorker) for e in world.tick(0.8))
    looks = [e for e in world.tick(1.0) if isinstance(e, LookAtWorker)]
    assert looks
    assert {look.worker for look in looks} == {WorkerId(1, 0)}
    world.tick(0.4)
    assert world.phase("1.0") is WorkerPhase.LOST
    world.tick(1.0)  # how it ended might still be told
    assert lost(world)["1.0"].startswith("no heartbeat for 2.")


def test_one_that_ran_and_is_then_stopped_is_lost_after_the_heartbeat_timeout() -> None:
    world = held_world()
    held = world.actors["1.0"]
    held.held = held.mute = True
    world.tick(5.0)
    held.held, held.silent = False, True
    world.tick(3.2)
    assert world.phase("1.0") is WorkerPhase.LOST


def test_word_of_another_process_is_no_sign_of_life() -> None:
    world = held_world()
    stopped = world.actors["1.0"]
    stopped.silent = stopped.mute = True
    for _ in range(12):
        world.tick(0.2)
        world.handle(WorkerRuns(worker="1.0", pid=77))
    assert world.phase("1.0") is WorkerPhase.LOST


def test_a_joiner_whose_process_runs_without_heartbeats_has_as_long_as_a_start() -> None:
    world = held_world()
    world.die("1.0")
    world.pump()
    world.come("1.0")
    world.pump()
    assert world.phase("1.0") is WorkerPhase.COPYING
    world.tick(0.2)
    joiner = world.actors["1.0"]
    joiner.held = joiner.mute = True
    world.tick(175.0)
    assert world.phase("1.0") is WorkerPhase.COPYING
    world.tick(10.0)
    assert world.phase("1.0") is WorkerPhase.LOST


# --- told to stop in the midst of it ---


def stopped_while_loading(seconds_before: float, **more) -> World:
    """1.0 has loaded for so long when 0.1 dies, and hears nothing."""
    world = held_world(**more)
    loader = world.actors["1.0"]
    loader.operation, loader.number, loader.since_s = "load", 3, world.at_s
    loader.mute = True
    world.tick(seconds_before)
    world.die("0.1")
    world.pump()
    return world


def lost(world: World) -> dict[str, str]:
    return {one.worker: one.cause for one in emitted(world.effects, events.WorkerLost)}


@pytest.mark.parametrize("sign", ["beats", "runs"])
def test_one_that_loads_is_not_lost_because_another_died_meanwhile(sign) -> None:
    world = stopped_while_loading(1.0)
    loader = world.actors["1.0"]
    loader.held = sign == "runs"
    world.tick(25.0)
    loader.held = False
    loader.operation, loader.number = "", -1
    world.tick(0.2)  # the heartbeat that tells so comes before the answer
    loader.mute = False
    world.pump()
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert lost(world).keys() == {"0.1"}


def test_one_that_is_stuck_when_it_is_told_to_stop_is_lost_as_such() -> None:
    world = stopped_while_loading(1.0)
    world.tick(31.0)
    assert lost(world)["1.0"].startswith("stuck in loading data for 30.")


def test_a_first_compile_may_take_as_long_as_a_start_when_another_dies() -> None:
    world = World(2).start()
    compiles = world.actors["1.0"]
    compiles.operation, compiles.number, compiles.mute = "F", 1, True
    world.tick(1.0)
    world.die("0.1")
    world.pump()
    world.tick(170.0)
    assert "1.0" not in lost(world)
    world.tick(15.0)
    assert lost(world)["1.0"].startswith("stuck in forward for 18")


def test_one_that_goes_from_operation_to_operation_does_not_stop_and_is_lost() -> None:
    world = stopped_while_loading(1.0)
    loader = world.actors["1.0"]
    for number in range(100, 400):
        if "1.0" in lost(world):
            break
        loader.number, loader.since_s = number, world.at_s
        world.tick(0.4)
    assert lost(world)["1.0"] == "did not stop within 20 s"
    assert 50 <= world.at_s <= 55


def test_one_that_waits_and_does_not_stop_is_lost_as_before() -> None:
    world = stopped_while_loading(0.4)
    world.actors["1.0"].operation = ""
    world.tick(20.8)
    assert lost(world)["1.0"] == "did not stop within 20 s"


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
    assert world.phase("1.0") is WorkerPhase.LOST
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
