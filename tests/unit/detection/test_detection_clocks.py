"""Links between machines whose clocks differ: the same are named as with one clock, as soon."""

import pytest

from helpers.slow_worlds import Slow, World, w
from holdfast.detection.diagnosis import Cause
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.observation import Transfer

ONSET = 30
DRIFT = 1e-4
OFFSETS_S = (-3600.0, 0.2, 3600.0)
WAYS = ("1.0-1.1", "1.0>1.1", "1.1>1.0", "0.0-1.0", "0.0>1.0", "1.0>0.0")


def own_machine(worker):
    return f"host{worker}"


def clocks(offset_s, drift=DRIFT):
    """Each worker's is ahead of the one before it by this."""
    return lambda worker, step: (worker.pipeline + 2 * worker.stage) * (offset_s + drift * step)


def told(world, num_steps=90, settings=None):
    story = world.run(world.watcher(settings), num_steps)
    faults = [(step, d.cause, d.subject, d.since) for step, d in story.faults()]
    return faults + [(step, over.cause, over.subject, over.since) for step, over in story.overs()]


@pytest.mark.parametrize("offset_s", OFFSETS_S)
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_link_is_named_in_the_same_step_as_with_one_clock(way, offset_s):
    slow = [Slow(way, ONSET, 60, delay_s=0.005)]
    with_one = told(World(slow=slow))
    assert [cause for _, cause, *_ in with_one] == [Cause.LINK, Cause.LINK]  # and its end
    apart = {"slow": slow, "ahead_s": clocks(offset_s)}
    assert told(World(machine_of=own_machine, **apart)) == with_one
    assert told(World(**apart)) == with_one  # whatever their machines are called


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_a_link_that_goes_from_10_to_200_ms_is_found(offset_s):
    class Far(World):
        def transfer(self, source, to, kind, count, step):
            row = super().transfer(source, to, kind, count, step)
            return row._replace(moved_s=row.moved_s + 0.0095)

    slow = [Slow("0.0-1.0", ONSET, delay_s=0.19)]
    with_one = told(Far(slow=slow))
    assert with_one[0][0] <= ONSET + 6
    assert told(Far(slow=slow, machine_of=own_machine, ahead_s=clocks(offset_s))) == with_one


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_healthy_links_are_left_alone_however_their_clocks_drift(offset_s):
    world = World(microbatches=2, machine_of=own_machine, ahead_s=clocks(offset_s))
    assert world.run(world.watcher(), 600).diagnoses() == []
    assert world.num_asked <= 2


@pytest.mark.parametrize("offset_s", [0.0, *OFFSETS_S])
@pytest.mark.parametrize(("way", "words"), [("1.0>1.1", "only from 1.0 to 1.1"), ("1.0-1.1", "")])
def test_the_direction_is_named_if_it_is_one(way, words, offset_s):
    machine_of = own_machine if offset_s else (lambda worker: "a")
    slow = [Slow(way, ONSET, delay_s=0.005)]
    world = World(slow=slow, machine_of=machine_of, ahead_s=clocks(offset_s))
    watcher = world.watcher()
    ((_, found),) = world.run(watcher, 120).faults()
    assert words in found.evidence
    assert ("only from" in found.evidence) == bool(words)
    assert found.excess_s == pytest.approx(0.005, rel=0.15)
    assert watcher.health().links[w("1.0"), w("1.1")] == pytest.approx(0.005, rel=0.15)


class OneWay(World):
    """0.0 never sends anything to 1.0 but probes."""

    def transfers(self, to, stage, step):
        rows = super().transfers(to, stage, step)
        is_end = to == w("1.0")
        return tuple(r for r in rows if r.kind == "probe" or not (is_end and r.source == w("0.0")))


@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_a_link_with_traffic_in_one_direction_is_judged_by_echoes(offset_s):
    slow = [Slow("1.0>0.0", 60, 90, delay_s=0.005)]
    with_one = told(OneWay(slow=slow), 130)
    assert [subject for _, _, subject, _ in with_one] == ["0.0-1.0", "0.0-1.0"]
    world = OneWay(slow=slow, machine_of=own_machine, ahead_s=clocks(offset_s))
    found = told(world, 130)
    assert [each[1:3] for each in found] == [each[1:3] for each in with_one]
    assert all(abs(one[0] - each[0]) <= 1 for one, each in zip(with_one, found, strict=True))
    assert 3 <= world.num_asked <= 20


def test_echoes_are_asked_for_less_and_less_often():
    world = OneWay(machine_of=own_machine, ahead_s=clocks(3600.0))
    watcher = world.watcher()
    world.run(watcher, 100)
    soon = world.num_asked
    world.run(watcher, 400, first=100)
    assert 3 <= soon <= 16
    assert world.num_asked - soon <= soon


def test_without_measurements_a_link_in_one_direction_between_two_clocks_is_not_judged():
    slow = [Slow("1.0>0.0", 60, delay_s=0.005)]
    world = OneWay(slow=slow, machine_of=own_machine, ahead_s=clocks(3600.0), answers=False)
    assert told(world, 130, WatchSettings(validate=False)) == []
    assert world.num_asked == 0


def test_workers_of_one_machine_have_one_clock_and_nobody_asks():
    world = OneWay(slow=[Slow("1.0>0.0", 60, delay_s=0.005)])
    told(world, 58)
    assert world.num_asked == 0


def test_clocks_that_turn_out_to_be_two_are_learnt_anew():
    """Of one machine by name: the offset was less than the way, and a drift shows it."""
    slow = [Slow("0.0-1.0", 80, delay_s=0.005)]
    world = World(slow=slow, ahead_s=lambda worker, step: worker.pipeline * DRIFT * step)
    ((step, _, subject, _),) = told(world, 110)
    assert (step <= 86, subject) == (True, "0.0-1.0")


def test_who_comes_back_on_another_machine_has_another_clock():
    slow = [Slow("0.0-1.0", 80, delay_s=0.005)]
    ahead = {"s": 0.2}
    where = lambda worker, step: worker.pipeline * ahead["s"]  # noqa: E731
    world = World(slow=slow, machine_of=own_machine, ahead_s=where)
    watcher = world.watcher()
    assert world.run(watcher, 40).faults() == []
    ahead["s"] = 3600.0
    for worker in ("1.0", "1.1"):
        watcher.joined(w(worker), "another")
    assert world.run(watcher, 40, first=40).faults() == []
    ((_, found),) = world.run(watcher, 30, first=80).faults()
    assert found.subject == "0.0-1.0"


def test_times_of_the_reports_count_and_not_their_number():
    """Slow steps take longer: the drift of a step is not the same for all."""

    class Timed(World):
        def at_s(self, step):
            return step + 4.0 * max(0, step - ONSET)

        def report(self, worker, step, common):
            return super().report(worker, step, common)._replace(at_s=self.at_s(step))

    slow = [Slow("1.0>1.1", ONSET, delay_s=0.005)]
    world = Timed(slow=slow, machine_of=own_machine)
    world.ahead_s = lambda worker, step: worker.stage * (0.2 + DRIFT * world.at_s(step))
    ((_, found),) = world.run(world.watcher(), 150).faults()
    assert "only from 1.0 to 1.1" in found.evidence
    assert found.excess_s == pytest.approx(0.005, rel=0.15)


def test_a_worker_that_sends_to_itself_is_no_link():
    world = World(machine_of=own_machine, ahead_s=clocks(3600.0))
    watcher = world.watcher()
    for step in range(30):
        for worker in world.workers:
            report = world.report(worker, step, 0.0)
            own = Transfer(worker, "pipeline", 1, 1000, 5.0 * (step > 20))
            watcher.observe(report._replace(transfers=(*report.transfers, own)))
        assert watcher.conclude(step) == []
