"""Times that workers tell reach the coordinator by its own clock, whatever theirs say."""

import random

import pytest

from helpers.slow_worlds import w
from holdfast.control.effects import Send
from holdfast.control.io.worker_clocks import WorkerClocks
from holdfast.observability.chrometrace import chrome_trace
from holdfast.observability.events import WorkerStep
from holdfast.protocol import messages
from holdfast.protocol.records import OperationTime

OFFSETS_S = (-3600.0, 0.2, 3600.0)
DRIFT = 1e-4
WAY_S = 0.0003
BEGIN_S = 5000.0


def hello(worker, host):
    return messages.Hello(
        worker=worker,
        pid=1,
        fingerprint={},
        traits={},
        num_layers=1,
        layer_hashes=[],
        cut=[],
        host=host,
        port=1,
        device_index=0,
        device_bytes=0,
    )


def report(worker, *operations):
    return messages.StepReport(
        worker=worker,
        step=0,
        losses=[],
        num_tokens=0,
        norm=1.0,
        clipped=False,
        skipped=False,
        taken_back=False,
        nonfinite=False,
        operations=[OperationTime(op, start_s, end_s, 0.0, 0) for op, start_s, end_s in operations],
        transfers=[],
    )


def fault(worker, at_s):
    return messages.FaultReport(
        worker=worker,
        fault_kind="kill",
        fault="kill",
        step=1,
        attempt=0,
        point="F0",
        done=0,
        at_s=at_s,
    )


class Far:
    """A worker on another machine, and the way to it."""

    def __init__(self, offset_s, worker="1.0"):
        self.worker, self.offset_s = worker, offset_s
        self.chance = random.Random(1)
        self.clocks = WorkerClocks()
        self.clocks.heard(hello(worker, "10.0.0.2"), BEGIN_S)
        self.asked_s = []

    def clock_s(self, true_s):
        return true_s + self.offset_s + DRIFT * (true_s - BEGIN_S)

    def run(self, until_s):
        for tick in range(int(BEGIN_S * 20), int(until_s * 20)):
            for effect in self.clocks.due({w(self.worker)}, tick / 20):
                assert isinstance(effect, Send)
                self.answer(effect.message)

    def answer(self, ask):
        there_s, back_s = (WAY_S * self.chance.lognormvariate(0, 0.3) for _ in range(2))
        heard_s = self.clock_s(ask.asked_s + there_s)
        told = messages.ClockTold(
            worker=self.worker, asked_s=ask.asked_s, heard_s=heard_s, sent_s=heard_s
        )
        assert self.clocks.heard(told, ask.asked_s + there_s + back_s) is None
        self.asked_s.append(ask.asked_s)


@pytest.mark.parametrize("offset_s", OFFSETS_S)
@pytest.mark.parametrize("after_s", [0.5, 20.0, 700.0])
def test_a_moment_is_translated_to_within_the_way(offset_s, after_s):
    far = Far(offset_s)
    far.run(BEGIN_S + after_s)
    true_s, now_s = BEGIN_S + after_s, BEGIN_S + after_s + 0.05
    resumed = messages.Resumed(worker="1.0", epoch=2, at_s=far.clock_s(true_s))
    assert far.clocks.heard(resumed, now_s).at_s == pytest.approx(true_s, abs=2 * WAY_S)
    fired = fault("1.0", far.clock_s(true_s))
    assert far.clocks.heard(fired, now_s).at_s == pytest.approx(true_s, abs=2 * WAY_S)


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_operations_of_two_machines_stand_in_the_trace_as_they_ran(offset_s):
    far = Far(offset_s)
    far.clocks.heard(hello("0.0", "127.0.0.1"), BEGIN_S)
    far.run(BEGIN_S + 60.0)
    begin_s, now_s = BEGIN_S + 60.0, BEGIN_S + 61.0
    rows = [
        ("0.0", "0F0", begin_s, begin_s + 0.010),
        ("1.0", "0F4", far.clock_s(begin_s + 0.002), far.clock_s(begin_s + 0.012)),
    ]
    steps = []
    for worker, *row in rows:
        heard = far.clocks.heard(report(worker, tuple(row)), now_s)
        ops = tuple((one.op, one.start_s, one.end_s) for one in heard.operations)
        steps.append(WorkerStep(at_s=now_s, worker=worker, step=0, ops=ops))
    found = {row["name"]: row for row in chrome_trace(steps)["traceEvents"] if row["ph"] == "X"}
    assert found["0F4"]["ts"] - found["0F0"]["ts"] == pytest.approx(2000.0, abs=2e6 * WAY_S)
    assert found["0F4"]["dur"] == pytest.approx(10_000.0, abs=2.0)


def test_one_that_has_not_answered_spoke_of_the_moment_in_which_it_is_heard():
    far = Far(3600.0)
    resumed = messages.Resumed(worker="1.0", epoch=2, at_s=far.clock_s(BEGIN_S))
    assert far.clocks.heard(resumed, BEGIN_S + 0.1).at_s == BEGIN_S + 0.1
    (heard,) = far.clocks.heard(report("1.0", ("0F0", 7.0, 7.5)), BEGIN_S).operations
    assert (heard.start_s, heard.end_s) == (BEGIN_S - 0.5, BEGIN_S)


def test_nothing_is_in_the_future():
    far = Far(0.2)
    far.run(BEGIN_S + 1.0)
    lies = messages.Resumed(worker="1.0", epoch=2, at_s=9e9)
    assert far.clocks.heard(lies, BEGIN_S + 1.0).at_s == BEGIN_S + 1.0


def test_workers_of_this_machine_are_not_asked_and_not_translated():
    clocks = WorkerClocks()
    clocks.heard(hello("0.0", "127.0.0.1"), BEGIN_S)
    assert clocks.due({w("0.0")}, BEGIN_S + 100.0) == []
    resumed = messages.Resumed(worker="0.0", epoch=2, at_s=17.25)
    assert clocks.heard(resumed, BEGIN_S) == resumed
    told = report("0.0", ("0F0", 7.0, 7.5))
    assert clocks.heard(told, BEGIN_S) is told


def test_others_are_asked_soon_and_then_rarely():
    far = Far(0.2)
    far.run(BEGIN_S + 600.0)
    assert sum(at_s < BEGIN_S + 2.0 for at_s in far.asked_s) >= 4
    assert len(far.asked_s) <= 32


def test_one_that_is_back_is_asked_anew():
    far = Far(0.2)
    far.run(BEGIN_S + 60.0)
    far.clocks.heard(hello("1.0", "10.0.0.3"), BEGIN_S + 60.0)
    resumed = messages.Resumed(worker="1.0", epoch=2, at_s=17.25)
    assert far.clocks.heard(resumed, BEGIN_S + 60.0).at_s == BEGIN_S + 60.0
    assert far.clocks.due({w("1.0")}, BEGIN_S + 60.0)


@pytest.mark.parametrize("lie", [{"asked_s": 1e11}, {"heard_s": 9e9, "sent_s": 1.0}])
def test_answers_that_cannot_be_are_ignored(lie):
    far = Far(0.2)
    told = {"worker": "1.0", "asked_s": BEGIN_S, "heard_s": 1.0, "sent_s": 1.0, **lie}
    assert far.clocks.heard(messages.ClockTold(**told), BEGIN_S + 0.1) is None
    resumed = messages.Resumed(worker="1.0", epoch=2, at_s=17.25)
    assert far.clocks.heard(resumed, BEGIN_S + 1.0).at_s == BEGIN_S + 1.0
