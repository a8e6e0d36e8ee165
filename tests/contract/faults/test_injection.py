"""Injected faults on a worker: where they fire, once each, and what they really do."""

import math
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from helpers.fired import fired
from helpers.stamps import stamps_of_both
from holdfast.cluster import WorkerId
from holdfast.faults.fault import parse_fault
from holdfast.faults.injection import Injector, Killed, LastingFaults, ProcessActions, ThreadActions
from holdfast.protocol.codec import Splitter, encode
from holdfast.protocol.messages import Ready
from holdfast.schedule.operation import parse_op

LIMIT_S = 30.0  # against hangs only
WENT_ON = Ready(worker="9.9")  # of nobody else
STEP = 4  # "5" in the text of a fault
FUSED = ["0F0", "0F1", "0BW0", "0F2", "0B1", "0BW2", "0W1", "0R"]


def armed(*texts):
    """An injector, and the list of what it does."""
    acts = []
    injector = Injector(
        [parse_fault(text) for text in texts],
        lambda fault, step, point, done: acts.append((str(fault), step, point, done)),
    )
    return injector, acts


def run_step(injector, acts, step=STEP, lane=FUSED, begin=True):
    """For each new act, the operation it came before (``-0F1``) or after (``+0F1``)."""
    moments = []

    def note(moment):
        moments.extend([moment] * (len(acts) - len(moments) - already))

    already = len(acts)
    if begin:
        injector.begin(step)
        note("begin")
    for done, op in enumerate(map(parse_op, lane)):
        injector.before(step, op, done)
        note(f"-{op}")
        injector.after(step, op, done + 1)
        note(f"+{op}")
    return moments


# --- where a fault fires ---


@pytest.mark.parametrize(
    ("point", "moment", "done"),
    [
        ("begin", "begin", 0),
        ("F0", "-0F0", 0),
        ("F1", "-0F1", 1),
        ("F2.done", "+0F2", 4),
        ("B0", "-0BW0", 2),
        ("B1", "-0B1", 4),
        ("B1.done", "+0B1", 5),
        ("B2", "-0BW2", 5),
        ("W0", "-0BW0", 2),
        ("W0.done", "+0BW0", 3),
        ("W1", "-0BW2", 5),
        ("W2", "-0W1", 6),
        ("W2.done", "+0W1", 7),
    ],
)
@pytest.mark.parametrize("kind", ["kill 1.0", "hang 1.0", "slow 1.0=0.5"])
def test_operations_are_counted_by_kind_and_a_fused_one_counts_as_both(kind, point, moment, done):
    fault = str(parse_fault(f"{kind} @ 5.{point}"))
    injector, acts = armed(fault)
    assert run_step(injector, acts, STEP - 1) == []
    assert run_step(injector, acts) == [moment]
    assert acts == [(fault, STEP, point, done)]


@pytest.mark.parametrize("point", ["F3", "B3.done", "W3", "half", "save"])
def test_a_point_that_is_not_reached_does_not_fire(point):
    injector, acts = armed(f"kill 1.0 @ 5.{point}")
    for step in range(8):
        run_step(injector, acts, step)
    assert acts == []


def test_a_phase_fires_where_it_is_reached_and_in_its_step_only():
    injector, acts = armed("kill 1.0 @ 5.half")
    injector.reach(STEP, "apply", 8)
    injector.reach(STEP - 1, "half", 8)
    injector.reach(STEP + 1, "half", 8)
    assert acts == []
    injector.reach(STEP, "half", 8)
    assert acts == [("kill 1.0 @ 5.half", STEP, "half", 8)]


def test_a_halt_fires_the_first_time_it_comes_from_its_step_on():
    injector, acts = armed("kill 1.0 @ 5.halt")
    for step in (STEP - 1, STEP + 2, STEP + 3):
        injector.reach(step, "halt")
    assert acts == [("kill 1.0 @ 5.halt", STEP + 2, "halt", 0)]


def test_several_faults_at_one_point_fire_in_the_order_given():
    texts = ["slow 1.0=0.5 @ 5.F1", "hang 1.0 @ 5.F1", "kill 1.0 @ 5.F1", "kill 1.0 @ 5.F2"]
    injector, acts = armed(*texts)
    assert run_step(injector, acts) == ["-0F1", "-0F1", "-0F1", "-0F2"]
    assert [text for text, *_ in acts] == texts


# --- once ---


def test_a_fault_that_has_fired_does_not_fire_again_in_another_attempt():
    injector, acts = armed("hang 1.0 @ 5.F1", "hang 1.0 @ 5", "hang 1.0 @ 6")
    assert run_step(injector, acts) == ["begin", "-0F1"]
    assert run_step(injector, acts) == []
    assert len(acts) == 2


def test_another_attempt_counts_operations_from_zero():
    injector, acts = armed("kill 1.0 @ 5.F2")
    assert run_step(injector, acts, lane=["0F0", "0F1"]) == []
    assert run_step(injector, acts) == ["-0F2"]


def test_the_rest_of_a_step_counts_on_even_after_the_next_step_has_begun():
    injector, acts = armed("kill 1.0 @ 5.F3", "kill 1.0 @ 6.F2")
    run_step(injector, acts)
    run_step(injector, acts, STEP + 1, ["0F0", "0F1"])
    assert run_step(injector, acts, STEP, ["0F7"], begin=False) == ["-0F7"]
    assert run_step(injector, acts, STEP + 1, ["0F2"], begin=False) == ["-0F2"]


def test_an_operation_that_was_broken_off_is_not_counted():
    injector, acts = armed("kill 1.0 @ 5.F1")
    injector.begin(STEP)
    for _ in range(3):
        injector.before(STEP, parse_op("0F0"), 0)
    assert acts == []
    injector.after(STEP, parse_op("0F0"), 1)
    injector.before(STEP, parse_op("0F1"), 1)
    assert len(acts) == 1


def test_a_fault_counts_as_fired_before_it_acts():
    def act(fault, step, point, done):
        assert not injector.due(step, point)
        injector.reach(step, point)  # as a thread that was woken would
        acts.append(point)

    acts = []
    injector = Injector([parse_fault("hang 1.0 @ 5.half")], act)
    injector.reach(STEP, "half")
    assert acts == ["half"]


def test_threads_that_reach_one_point_together_fire_it_once():
    counts = Counter()
    texts = [f"hang 1.0 @ {step}.halt" for step in range(1, 201)]
    injector = Injector(
        [parse_fault(text) for text in texts],
        lambda fault, *_: counts.update([str(fault)]),
    )
    gate = threading.Barrier(4)

    def reach_all():
        gate.wait(LIMIT_S)
        for step in range(200):
            injector.reach(step, "halt")

    threads = [threading.Thread(target=reach_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert counts == Counter(texts)


# --- due and slow ---


def test_due_says_whether_a_kill_or_a_hang_waits_there():
    injector, _ = armed("kill 1.0 @ 5.half", "hang 1.0 @ 6.copy", "slow 1.0=0.5 @ 5.apply")
    assert injector.due(STEP, "half")
    assert injector.due(STEP + 7, "copy")
    assert not injector.due(STEP + 1, "half")
    assert not injector.due(STEP, "copy")
    assert not injector.due(STEP, "apply")
    injector.reach(STEP, "half")
    assert not injector.due(STEP, "half")


def test_a_slow_worker_gets_slower_when_its_fault_is_reached_and_not_before():
    injector, acts = armed("slow 1.0=0.5 @ 5.F1", "slow 1.0=0.25 @ 6", "slow 1.0=1 @ 7")
    assert injector.slowdown(0.5) == 0.0
    run_step(injector, acts)
    assert injector.slowdown(0.5) == 0.5
    run_step(injector, acts, STEP + 1)
    assert injector.slowdown(0.5) == 1.5
    run_step(injector, acts, STEP + 2)
    assert injector.slowdown(0.5) == 0.0
    assert len(acts) == 3


def test_without_faults_nothing_is_counted_and_nothing_happens():
    injector, acts = armed()
    assert run_step(injector, acts) == []
    injector.reach(STEP, "half")
    assert not injector.due(STEP, "half")
    assert injector.slowdown(1.0) == 0.0
    assert not injector.counts  # no work an operation: the usual run has no faults


# --- slowness that lasts ---


class Machine:
    """What a worker's slowness does to it, and the injectors of the stages that it holds."""

    def __init__(self, me="1.0"):
        self.acts, self.hindered, self.contended = [], [], []
        self._lasting = LastingFaults(
            WorkerId(*map(int, me.split("."))),
            lambda peer, delay_s, bytes_s: self.hindered.append((str(peer), delay_s, bytes_s)),
            self.contended.append,
        )

    def injector(self, *texts):
        return Injector(
            [parse_fault(text) for text in texts],
            lambda fault, step, point, done: self.acts.append((str(fault), step, point, done)),
            self._lasting,
        )

    def taken(self, what):
        """What has come to this list since the last time."""
        new = what[:]
        what.clear()
        return new


@pytest.fixture
def machine():
    return Machine()


def test_a_slow_range_begins_and_ends_with_a_step_and_is_told_once(machine):
    injector = machine.injector("slow 1.0 @ 3-5 x3.0")
    more_s = []
    for step in range(7):
        injector.begin(step)
        more_s.append(injector.slowdown(0.5))
    assert more_s == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert machine.acts == [("slow 1.0 @ 3-5 x3.0", 2, "begin", 0)]


def test_slow_faults_that_last_at_once_multiply_and_so_does_a_speed(machine):
    injector = machine.injector("slow 1.0 @ 2 x2.0", "slow 1.0 @ 3-4 x1.5", "slow 1.0=0.5 @ 4.F1")
    factors = []
    for step in range(5):
        run_step(injector, [], step)
        factors.append(1 + injector.slowdown(1.0))
    assert factors == [1.0, 2.0, 3.0, 6.0, 4.0]


def test_a_fault_that_is_told_is_told_before_it_acts():
    told = []
    slowness = LastingFaults(WorkerId(0, 0), lambda *_: told.append("acts"))
    faults = [parse_fault("link 0.0-0.1 @ 1 +1ms")]
    Injector(faults, lambda *_: told.append("told"), slowness).begin(0)
    assert told == ["told", "acts"]


def test_a_new_stage_in_mid_fault_is_as_slow_and_tells_nothing_again(machine):
    machine.injector("slow 1.0 @ 3-5 x3.0").begin(2)
    moved = machine.injector()  # it has fired: it may not be given again
    moved.begin(3)
    assert moved.slowdown(0.5) == 1.0
    moved.begin(5)
    assert moved.slowdown(0.5) == 0.0
    again = machine.injector("slow 1.0 @ 3-5 x3.0")
    again.begin(4)
    assert again.slowdown(0.5) == 1.0
    assert len(machine.acts) == 1


def test_a_worker_that_comes_in_mid_fault_is_slow_at_once_and_tells_it(machine):
    late = machine.injector("slow 1.0 @ 3-5 x3.0", "slow 1.0 @ 1-2 x2.0")
    late.begin(3)
    assert late.slowdown(0.5) == 1.0
    assert machine.acts == [("slow 1.0 @ 3-5 x3.0", 3, "begin", 0)]


def test_the_rest_of_a_step_is_slow_from_the_new_plan_on(machine):
    late = machine.injector("slow 1.0 @ 3-5 x3.0")
    late.reach(2, "proceed", 4)
    assert late.slowdown(0.5) == 1.0
    assert machine.acts == [("slow 1.0 @ 3-5 x3.0", 2, "begin", 4)]


def test_a_run_that_goes_back_is_slow_again_in_the_same_steps_and_tells_nothing_again(machine):
    injector = machine.injector("slow 1.0 @ 3-5 x3.0")
    for step, more_s in [(2, 1.0), (5, 0.0), (1, 0.0), (2, 1.0), (2, 1.0)]:
        injector.begin(step)
        assert injector.slowdown(0.5) == more_s
    assert len(machine.acts) == 1


@pytest.mark.parametrize(("me", "peer", "tells"), [("0.1", "1.0", True), ("1.0", "0.1", False)])
def test_both_ends_of_a_link_hinder_what_they_send_and_the_smaller_one_tells(me, peer, tells):
    machine = Machine(me)
    injector = machine.injector("link 0.1-1.0 @ 3-4 +15ms", "link 0.1-1.0 @ 5-5 10MB/s")
    well = (peer, 0.0, math.inf)
    for step, hindered in [
        (1, []),
        (2, [(peer, 0.015, math.inf)]),
        (3, []),
        (4, [well, (peer, 0.0, 1e7)]),
        (5, [well]),
        (6, []),
    ]:
        injector.begin(step)
        assert machine.taken(machine.hindered) == hindered
    told = ["link 0.1-1.0 @ 3-4 +15ms", "link 0.1-1.0 @ 5-5 10MB/s"]
    assert [act[0] for act in machine.acts] == (told if tells else [])
    assert injector.slowdown(1.0) == 0.0


def test_the_cpu_is_shared_in_the_steps_of_its_fault_only(machine):
    injector = machine.injector("cpu 1.0 @ 3-4 x4.0", "slow 1.0 @ 4-4 x2.0")
    shares = []
    for step in range(6):
        injector.begin(step)
        shares.append(machine.taken(machine.contended)[-1:])
    assert shares == [[], [], [4.0], [4.0], [1.0], []]
    assert machine.acts[0] == ("cpu 1.0 @ 3-4 x4.0", 2, "begin", 0)


def test_a_worker_that_is_about_to_hang_is_woken_by_nobody(machine):
    injector = machine.injector("cpu 1.0 @ 3-4 x4.0", "hang 1.0 @ 3.F0")
    run_step(injector, machine.acts, 2)
    assert machine.contended == [4.0, 1.0]
    assert [act[0] for act in machine.acts] == ["cpu 1.0 @ 3-4 x4.0", "hang 1.0 @ 3.F0"]


def test_lasting_slowness_alone_costs_no_count_of_operations(machine):
    injector = machine.injector("slow 1.0 @ 5 x2.0")
    assert run_step(injector, machine.acts) == ["begin"]
    assert not injector.counts


# --- a worker that is a process ---


class Child:
    """A forked process that carries out a fault, and what it said before."""

    def __init__(self, text, in_a_thread):
        self._read, write = os.pipe()
        self._splitter = Splitter(stamps_of_both()[1])
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _act_in_child(text, write, in_a_thread)
            finally:
                os._exit(3)  # never back into pytest
        os.close(write)

    def wait(self, options=0):
        """Its status, once it has ended (or stopped, with WUNTRACED)."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            pid, status = os.waitpid(self.pid, options | os.WNOHANG)
            if pid:
                if not os.WIFSTOPPED(status):
                    self.pid = 0
                return status
            time.sleep(0.002)
        raise AssertionError("the child neither ended nor stopped")

    def said(self):
        """The messages in the pipe, now that nobody writes any more."""
        return self._splitter.feed(self._bytes())

    def _bytes(self):
        os.set_blocking(self._read, False)
        found = b""
        while True:
            try:
                more = os.read(self._read, 65536)
            except BlockingIOError:  # stopped: it still has the other end
                return found
            if not more:
                return found
            found += more

    def close(self):
        os.close(self._read)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _act_in_child(text, write, in_a_thread):
    stamps = stamps_of_both()[0]
    actions = ProcessActions(lambda message: os.write(write, stamps.stamped(encode(message))))

    def work():
        injector = Injector([parse_fault(text)], actions.act)
        injector.begin(STEP)
        injector.before(STEP, parse_op("0F0"), 0)
        injector.after(STEP, parse_op("0F0"), 1)
        os.write(write, stamps.stamped(encode(WENT_ON)))
        os._exit(0)

    if not in_a_thread:
        work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LIMIT_S)


@pytest.fixture(params=[False, True], ids=["main thread", "other thread"])
def child(request):
    children = []

    def fork(text):
        children.append(Child(text, request.param))
        return children[-1]

    yield fork
    for one in children:
        one.close()


def check_fired(message, text, point, done, *, since_s):
    """It is the message of this fault, with a time between ``since_s`` and now."""
    assert since_s <= message.at_s <= time.monotonic()
    assert replace(message, at_s=0.0) == fired("1.0", text, step=STEP, point=point, done=done)


forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@forks
def test_a_kill_of_a_process_is_told_and_then_really_happens(child):
    text, since_s = "kill 1.0 @ 5.F0.done", time.monotonic()
    killed = child(text)
    assert os.WTERMSIG(killed.wait()) == signal.SIGKILL
    [message] = killed.said()
    check_fired(message, text, "F0.done", 1, since_s=since_s)


@forks
def test_a_hanging_process_stands_still_after_the_message_until_it_is_woken(child):
    text, since_s = "hang 1.0 @ 5.F0", time.monotonic()
    hanging = child(text)
    assert os.WSTOPSIG(hanging.wait(os.WUNTRACED)) == signal.SIGSTOP
    [message] = hanging.said()
    check_fired(message, text, "F0", 0, since_s=since_s)
    os.kill(hanging.pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(hanging.wait()) == 0
    assert hanging.said() == [WENT_ON]


@forks
def test_a_slow_process_says_so_and_goes_on(child):
    text, since_s = "slow 1.0=0.5 @ 5", time.monotonic()
    slow = child(text)
    assert os.waitstatus_to_exitcode(slow.wait()) == 0
    message, last = slow.said()
    check_fired(message, text, "begin", 0, since_s=since_s)
    assert last == WENT_ON


# --- a worker that is a thread ---


def test_a_kill_of_a_thread_is_told_then_all_is_closed_then_the_thread_ends():
    order, since_s = [], time.monotonic()
    actions = ThreadActions(order.append, lambda: order.append("die"), threading.Event())
    with pytest.raises(Killed) as caught:
        actions.act(parse_fault("kill 1.0 @ 5.half"), STEP, "half", 7)
    message, last = order
    check_fired(message, "kill 1.0 @ 5.half", "half", 7, since_s=since_s)
    assert last == "die"
    assert not isinstance(caught.value, Exception)  # no broad "except" may revive it


def test_a_hanging_thread_is_silent_until_it_is_woken():
    told, woken = threading.Event(), threading.Event()
    actions = ThreadActions(lambda message: told.set(), pytest.fail, woken)
    fault = parse_fault("hang 1.0 @ 5")
    thread = threading.Thread(target=actions.act, args=(fault, STEP, "begin", 0), daemon=True)
    thread.start()
    try:
        assert told.wait(LIMIT_S)
        limit = time.monotonic() + LIMIT_S
        while not actions.hanging and time.monotonic() < limit:
            time.sleep(0.001)
        assert actions.hanging
        assert thread.is_alive()
    finally:
        woken.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert not actions.hanging


@pytest.mark.parametrize("text", ["hang 1.0 @ 5", "slow 1.0=0.5 @ 5"])
def test_a_slow_thread_goes_on_and_a_hang_that_nobody_ends_has_a_limit(text):
    told, since_s = [], time.monotonic()
    actions = ThreadActions(told.append, pytest.fail, threading.Event(), limit_s=0.01)
    actions.act(parse_fault(text), STEP, "begin", 0)
    [message] = told
    check_fired(message, text, "begin", 0, since_s=since_s)
    assert not actions.hanging
