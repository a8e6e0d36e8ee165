"""Simulated fleets: who is called slow, when, why, and that healthy ones are left alone."""

import random

import pytest

from helpers.slow_worlds import Slow, World, w
from holdfast.detection.diagnosis import Cause, Suspicion
from holdfast.detection.live.investigation import Investigation, InvestigationMove, Reading
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.watcher import Watcher
from holdfast.detection.observation import Transfer
from holdfast.errors import ConfigError

ONSET = 30


def only(found):
    """The one diagnosis that was told, and when."""
    assert len({(d.cause, d.subject) for _, d in found}) == 1, found
    return found[0]


def ragged(step, microbatch):
    return random.Random(step * 1000 + microbatch).randint(16, 128)


def test_a_slow_worker_is_named_within_five_steps_with_its_factor_and_evidence():
    world = World(slow=[Slow("1.0", ONSET, factor=2.0)])
    watcher = world.watcher()
    step, told = only(world.run(watcher, 60).faults())
    assert (told.cause, told.subject, told.workers) == (Cause.COMPUTE, "1.0", (w("1.0"),))
    assert step <= ONSET + 5
    assert abs(told.since - ONSET) <= 1
    assert told.factor == pytest.approx(2.0, rel=0.1)
    assert told.confidence > 0.9
    assert "benchmark 2.0" in told.evidence
    assert "CPU time 2." in told.evidence
    health = watcher.health()
    assert health.speeds.keys() == {w("1.0")}
    assert health.speeds[w("1.0")] == pytest.approx(0.5, rel=0.1)


def test_nothing_is_said_before_the_benchmark_has_answered():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5)])
    story = world.run(world.watcher(), 60)
    outcomes = [outcome for _, outcome in story]
    assert outcomes[0] == Suspicion((w("1.0"),), ())
    assert outcomes[1].cause is Cause.COMPUTE


def test_without_validation_nobody_is_measured():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5)], answers=False)
    story = world.run(world.watcher(WatchSettings(validate=False)), 60)
    assert world.num_asked == 0
    step, told = only(story.faults())
    assert told.subject == "1.0"
    assert step <= ONSET + 5


def test_a_suspect_whose_benchmark_never_comes_is_told_with_less_confidence():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5)], answers=False)
    step, told = only(world.run(world.watcher(), 60).faults())
    assert told.subject == "1.0"
    assert step <= ONSET + 8
    assert told.confidence <= 0.8
    assert "benchmark" not in told.evidence


def test_a_suspect_that_its_benchmark_acquits_is_not_told_at_once():
    world = World(slow=[Slow("1.0", ONSET, ONSET + 20, factor=1.5, benchmarked=False)])
    story = world.run(world.watcher(), 100)
    assert world.num_asked >= 1
    assert story.faults() == []


@pytest.mark.parametrize(("excess", "move"), [(0.05, None), (0.12, InvestigationMove.TELL)])
def test_a_suspect_whom_more_steps_clear_is_not_told_though_its_benchmark_was_slow_too(
    excess, move
):
    case = Investigation(WatchSettings())
    assert case.suspect(10, 8, 0.12, 0.9) is InvestigationMove.ASK
    case.weigh(excess)
    assert case.read(Reading(11, None, excess, None, 0.1)) is move


def test_slowness_that_no_benchmark_shows_is_told_when_it_lasts():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5, benchmarked=False)])
    _, told = only(world.run(world.watcher(), 120).faults())
    assert told.confidence < 0.7
    assert "does not show it" in told.evidence
    assert world.num_asked == WatchSettings().num_refusals


def test_relief_is_told_and_health_is_as_before():
    world = World(slow=[Slow("1.0", ONSET, 50, factor=1.5)])
    watcher = world.watcher()
    story = world.run(watcher, 80)
    assert len(story.faults()) == 1
    ((step, over),) = story.overs()
    assert (over.cause, over.subject, over.workers) == (Cause.COMPUTE, "1.0", (w("1.0"),))
    assert step <= 51 + 7
    assert abs(over.since - 51) <= 2
    assert watcher.health() == ({}, {})


def test_the_second_time_is_told_like_the_first():
    world = World(slow=[Slow("1.0", 30, 50, factor=1.5), Slow("1.0", 80, 100, factor=1.5)])
    story = world.run(world.watcher(), 140)
    assert [d.subject for _, d in story.faults()] == ["1.0", "1.0"]
    assert [over.subject for _, over in story.overs()] == ["1.0", "1.0"]


def test_a_change_of_the_factor_is_told_again():
    world = World(slow=[Slow("1.0", 30, factor=1.3), Slow("1.0", 60, factor=1.5)])
    watcher = world.watcher()
    factors = [d.factor for _, d in world.run(watcher, 90).faults()]
    assert factors == pytest.approx([1.3, 1.95], rel=0.08)
    assert watcher.health().speeds[w("1.0")] == pytest.approx(1 / 1.95, rel=0.1)


def test_half_a_relief_is_a_smaller_factor_and_not_the_end():
    world = World(slow=[Slow("1.0", 30, factor=1.3), Slow("1.0", 30, 60, factor=1.5)])
    story = world.run(world.watcher(), 90)
    assert [d.factor for _, d in story.faults()] == pytest.approx([1.95, 1.3], rel=0.08)
    assert story.overs() == []


def test_a_ladder_of_small_steps_is_found():
    rungs = [Slow("1.0", step, factor=1.06) for step in (40, 70, 100)]
    world = World(slow=rungs, noise=0.02)
    found = world.run(world.watcher(), 160).faults()
    _, told = only(found)
    assert told.subject == "1.0"
    assert found[-1][1].factor > 1.1


@pytest.mark.parametrize("seed", range(5))
def test_a_ladder_whose_rungs_follow_each_other_soon_is_found(seed):
    rungs = [Slow("1.0", step, factor=1.06) for step in (20, 36, 52)]
    world = World(slow=rungs, noise=0.03, seed=seed)
    step, told = only(world.run(world.watcher(), 64).faults())
    assert (told.subject, step <= 62) == ("1.0", True)


def test_steady_slowness_below_a_tenth_is_not_told():
    world = World(slow=[Slow("1.0", ONSET, factor=1.05)])
    assert world.run(world.watcher(), 200).faults() == []


def test_two_slow_workers_are_both_named():
    world = World(4, 2, slow=[Slow("1.0", ONSET, factor=1.5), Slow("2.1", ONSET + 3, factor=2.0)])
    watcher = world.watcher()
    story = world.run(watcher, 60)
    assert {(d.cause, d.subject) for _, d in story.faults()} == {
        (Cause.COMPUTE, "1.0"),
        (Cause.COMPUTE, "2.1"),
    }
    assert watcher.health().speeds.keys() == {w("1.0"), w("2.1")}


def test_one_of_two_on_a_machine_is_not_the_machine():
    world = World(2, 1, slow=[Slow("1.0", ONSET, factor=1.5)])
    _, told = only(world.run(world.watcher(), 60).faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "1.0")


def test_the_only_holder_of_a_stage_is_compared_with_itself():
    world = World(1, 4, slow=[Slow("0.2", ONSET, factor=1.5)])
    _, told = only(world.run(world.watcher(), 60).faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "0.2")


def test_all_workers_of_a_machine_at_once_are_a_slow_machine():
    where = lambda worker: f"m{worker.pipeline}"  # noqa: E731
    world = World(3, 3, slow=[Slow("m1", ONSET, 60, factor=1.6, cpu="flat")], machine_of=where)
    watcher = world.watcher()
    story = world.run(watcher, 50)
    _, told = only(story.faults())
    assert (told.cause, told.subject) == (Cause.MACHINE, "m1")
    assert told.workers == (w("1.0"), w("1.1"), w("1.2"))
    assert "short of CPU time" in told.evidence
    assert watcher.health().speeds.keys() == set(told.workers)
    later = world.run(watcher, 40, first=50)
    assert [(over.cause, over.subject) for _, over in later.overs()] == [(Cause.MACHINE, "m1")]
    assert watcher.health().speeds == {}


@pytest.mark.parametrize("late", [0, 1])
def test_half_of_a_machine_that_lacks_processor_time_is_a_slow_machine(late):
    crowd = ("0.0", "0.1", "1.0", "1.1")
    slow = [Slow(who, ONSET + late * i, 60, factor=1.5, cpu="flat") for i, who in enumerate(crowd)]
    world = World(4, 2, slow=slow)
    watcher = world.watcher()
    story = world.run(watcher, 90)
    told = story.diagnoses(Cause.MACHINE)[-1][1]
    assert told.workers == tuple(map(w, crowd))
    # whoever was told alone before this was clear is taken back
    alone = [d.subject for _, d in story.diagnoses(Cause.COMPUTE)]
    back = [over.subject for _, over in story.overs() if over.cause is Cause.COMPUTE]
    assert alone == back
    assert story.overs()[-1][1].cause is Cause.MACHINE
    assert watcher.health().speeds == {}


def test_one_worker_that_lacks_processor_time_is_slow_by_itself_and_the_evidence_says_why():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5, cpu="flat")])
    _, told = only(world.run(world.watcher(), 60).faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "1.0")
    assert "short of CPU time" in told.evidence
    assert told.hint == "short of CPU time"


def test_an_emulated_device_uses_no_processor_time_and_none_is_missed():
    slow = [Slow(who, ONSET, factor=1.5) for who in ("0.0", "1.0")]
    world = World(2, 4, slow=slow, cpu_share=0.01)
    found = world.run(world.watcher(), 60).faults()
    assert {(d.cause, d.subject) for _, d in found} == {
        (Cause.COMPUTE, "0.0"),
        (Cause.COMPUTE, "1.0"),
    }
    assert not any("processor" in d.evidence for _, d in found)


def test_slow_from_the_start_is_seen_by_the_other_holders_of_the_stage():
    world = World(slow=[Slow("1.0", 0, 60, factor=1.5)])
    watcher = world.watcher()
    story = world.run(watcher, 50)
    step, told = only(story.faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "1.0")
    assert step <= 12
    assert "from the start" in told.evidence
    assert watcher.health().speeds[w("1.0")] == pytest.approx(1 / 1.5, rel=0.1)
    assert [over.subject for _, over in world.run(watcher, 40, first=50).overs()] == ["1.0"]


def test_a_worker_that_only_its_stage_makes_slower_than_its_peers_is_left_alone():
    world = World(slow=[Slow("1.0", 0, factor=1.3, benchmarked=False)])
    assert world.run(world.watcher(), 80).faults() == []


@pytest.mark.parametrize("noise", [{"noise": 0.03}, {"noise": 0.05, "common": 0.15}])
def test_noise_alone_is_never_diagnosed(noise):
    world = World(microbatches=2, **noise)
    assert world.run(world.watcher(), 2000).diagnoses() == []
    assert world.num_asked <= 2


def test_one_worker_is_found_below_the_noise_that_all_share():
    world = World(2, 2, slow=[Slow("1.0", 60, factor=1.4)], noise=0.03, common=0.15)
    _, told = only(world.run(world.watcher(), 100).faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "1.0")


@pytest.mark.parametrize("factor", [3.0, 50.0])
def test_one_outlier_is_no_slowness(factor):
    slow = [Slow("1.0", step, step, factor=factor) for step in (30, 50, 70)]
    world = World(slow=[*slow, Slow("a", 90, 90, factor=factor)])
    assert world.run(world.watcher(), 120).diagnoses() == []
    assert world.num_asked == 0


def test_ragged_work_is_no_slowness():
    world = World(size_of=ragged)
    assert world.run(world.watcher(), 400).faults() == []


def test_a_slow_worker_is_found_below_ragged_work():
    world = World(size_of=ragged, slow=[Slow("1.0", ONSET, factor=1.5)])
    step, told = only(world.run(world.watcher(), 60).faults())
    assert told.subject == "1.0"
    assert told.factor == pytest.approx(1.5, rel=0.1)
    assert step <= ONSET + 5


def test_a_worker_that_goes_to_a_longer_stage_is_not_slow_and_is_found_there():
    moves = lambda worker, step: 1 if worker == w("1.0") and step >= 30 else worker.stage  # noqa: E731
    world = World(
        3,
        2,
        slow=[Slow("1.0", 60, factor=1.5)],
        stage_factor=lambda stage: 1.0 + stage,
        stage_of=moves,
        worker_factor={"1.0": 1.08},
    )
    watcher = world.watcher()
    assert world.run(watcher, 60).faults() == []
    _, told = only(world.run(watcher, 30, first=60).faults())
    assert told.subject == "1.0"
    assert told.factor == pytest.approx(1.5, rel=0.1)


def test_a_slow_worker_stays_slow_when_it_goes_to_another_stage():
    moves = lambda worker, step: 1 if worker == w("1.0") and step >= 60 else worker.stage  # noqa: E731
    world = World(
        3,
        2,
        slow=[Slow("1.0", ONSET, factor=1.5)],
        stage_factor=lambda stage: 1.0 + stage,
        stage_of=moves,
    )
    story = world.run(world.watcher(), 100)
    assert len(story.faults()) == 1
    assert story.overs() == []


def test_a_slow_worker_without_work_is_judged_by_benchmarks_only():
    world = World(
        slow=[Slow("1.0", ONSET, 80, factor=1.5)],
        idle=lambda worker, step: worker == w("1.0") and step > 40,
    )
    watcher = world.watcher()
    assert only(world.run(watcher, 78).faults())[1].subject == "1.0"
    assert watcher.health().speeds.keys() == {w("1.0")}
    asked = world.num_asked
    assert 2 <= asked <= 5  # now and then, less and less often
    later = world.run(watcher, 80, first=78)
    assert [over.subject for _, over in later.overs()] == ["1.0"]
    assert watcher.health().speeds == {}


def test_a_joiner_is_compared_with_its_peers_at_once():
    world = World(3, 1, slow=[Slow("2.0", 0, factor=1.5)])
    absent = world.workers.pop()
    watcher = world.watcher()
    world.run(watcher, 30)
    world.workers.append(absent)
    watcher.joined(absent, "a")
    world.benchmark(watcher, absent, 30)
    step, told = only(world.run(watcher, 20, first=30).faults())
    assert told.subject == "2.0"
    assert told.factor == pytest.approx(1.5, rel=0.1)
    assert step <= 30 + 8


def test_a_healthy_joiner_is_left_alone_and_found_when_it_gets_slow():
    world = World(3, 1, slow=[Slow("2.0", 60, factor=1.5)])
    absent = world.workers.pop()
    watcher = world.watcher()
    world.run(watcher, 30)
    world.workers.append(absent)
    watcher.joined(absent, "a")
    assert world.run(watcher, 30, first=30).faults() == []
    assert only(world.run(watcher, 20, first=60).faults())[1].subject == "2.0"


def test_who_is_lost_is_slow_no_more():
    world = World(slow=[Slow("1.0", ONSET, factor=1.5), Slow("0.0-0.1", ONSET, delay_s=0.01)])
    watcher = world.watcher()
    world.run(watcher, 60)
    watcher.lost(w("1.0"))
    watcher.lost(w("0.1"))
    assert watcher.health() == ({}, {})
    world.workers = [w("0.0"), w("1.1")]
    assert world.run(watcher, 20, first=60).faults() == []


@pytest.mark.parametrize("way", ["1.0-1.1", "1.0>1.1", "1.1>1.0", "0.0-1.0"])
def test_a_slow_link_is_named_in_each_direction(way):
    world = World(slow=[Slow(way, ONSET, 60, delay_s=0.005)])
    watcher = world.watcher()
    story = world.run(watcher, 50)
    step, told = only(story.faults())
    ends = tuple(sorted(map(w, way.replace(">", "-").split("-"))))
    assert (told.cause, told.subject, told.workers) == (
        Cause.LINK,
        f"{ends[0]}-{ends[1]}",
        ends,
    )
    assert step <= ONSET + 5
    assert told.excess_s == pytest.approx(0.005, rel=0.3)
    assert "measured alone" in told.evidence
    assert watcher.health().links.keys() == {ends}
    assert watcher.health().links[ends] == pytest.approx(0.005, rel=0.3)
    later = world.run(watcher, 40, first=50)
    assert [over.subject for _, over in later.overs()] == [told.subject]
    assert watcher.health().links == {}


def test_a_link_delay_that_is_small_next_to_the_operations_is_noise():
    world = World(slow=[Slow("1.0-1.1", ONSET, delay_s=0.0003)])
    assert world.run(world.watcher(), 100).faults() == []


def test_a_link_that_its_measurement_acquits_is_not_told():
    class Healthy(World):
        def transfer(self, source, to, kind, count, step):
            row = super().transfer(source, to, kind, count, step)
            return row._replace(moved_s=0.0008) if kind == "probe" else row

    world = Healthy(slow=[Slow("1.0-1.1", ONSET, 45, delay_s=0.005)])
    assert world.run(world.watcher(), 80).faults() == []
    assert world.num_asked >= 1


def test_late_messages_of_a_slow_process_are_not_blamed_on_its_links():
    slow = [Slow("1.0", ONSET, factor=2.0)]
    slow += [Slow(link, ONSET, delay_s=0.004) for link in ("1.0-1.1", "0.0-1.0")]
    world = World(slow=slow)
    _, told = only(world.run(world.watcher(), 80).faults())
    assert (told.cause, told.subject) == (Cause.COMPUTE, "1.0")


def test_a_slow_link_that_carries_nothing_any_more_is_measured_until_it_is_well():
    class Rerouted(World):
        def transfers(self, to, stage, step):
            rows = super().transfers(to, stage, step)
            pair = {w("1.0"), w("1.1")}
            return tuple(
                r for r in rows if r.kind == "probe" or step < 40 or {r.source, to} != pair
            )

    world = Rerouted(slow=[Slow("1.0-1.1", ONSET, 70, delay_s=0.01)])
    watcher = world.watcher()
    world.run(watcher, 65)
    assert watcher.health().links.keys() == {(w("1.0"), w("1.1"))}
    story = world.run(watcher, 100, first=65)
    assert [over.subject for _, over in story.overs()] == ["1.0-1.1"]


def test_steps_that_run_again_after_a_failure_do_not_confuse_the_procedure():
    world = World(slow=[Slow("1.0", 10, factor=1.5)])
    watcher = world.watcher()
    healthy = World()
    healthy.run(watcher, 60)
    world.run(watcher, 3, first=60)  # suspected, but the measurement is not answered any more
    world.asked = Suspicion((), ())
    story = world.run(watcher, 12, first=40)
    assert only(story.faults())[1].subject == "1.0"


def test_reports_of_unknown_workers_and_empty_steps_are_ignored():
    world = World()
    watcher = Watcher({w("0.0"): "a"})
    watcher.observe(world.report(w("1.1"), 0, 0.0))
    watcher.probed(w("1.1"), 0, 1.0, 1.0)
    watcher.lost(w("1.1"))
    assert watcher.conclude(0) == []
    empty = world.report(w("0.0"), 1, 0.0)._replace(ops=(), transfers=())
    for step in range(1, 30):
        watcher.observe(empty._replace(step=step))
        assert watcher.conclude(step) == []
    assert watcher.health() == ({}, {})


def test_a_message_from_nobody_known_is_no_link():
    world = World()
    watcher = world.watcher()
    world.run(watcher, 20)
    stranger = Transfer(w("9.9"), "pipeline", 1, 1000, 5.0)
    for step in range(20, 30):
        for worker in world.workers:
            report = world.report(worker, step, 0.0)
            watcher.observe(report._replace(transfers=(*report.transfers, stranger)))
        assert watcher.conclude(step) == []


@pytest.mark.parametrize("wrong", [{"relief_factor": 1.2}, {"num_learn_steps": 1}])
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        WatchSettings(**wrong)


def test_slowness_that_comes_and_goes_does_not_flap():
    bursts = [Slow("1.0", step, step + 11, factor=1.6) for step in range(30, 400, 24)]
    world = World(slow=bursts)
    story = world.run(world.watcher(), 560)
    overs = [step for step, _ in story.overs()]
    assert len(overs) <= 6  # of 16 bursts
    assert len(story.faults()) <= 8
    assert overs[-1] > 400  # and in the end it is well


def test_some_slow_steps_at_the_start_do_not_make_a_slow_worker():
    unlucky = [Slow("1.0", step, step, factor=1.25) for step in (3, 4, 6, 7, 9)]
    world = World(slow=unlucky, answers=False)
    assert world.run(world.watcher(), 40).faults() == []


def test_slowness_of_steps_that_ran_again_never_begins_before_the_first():
    case = Investigation(WatchSettings())
    assert case.read(Reading(2, None, 0.3, None, None, lasting=0.3)) is InvestigationMove.ASK
    assert case.since == 0
