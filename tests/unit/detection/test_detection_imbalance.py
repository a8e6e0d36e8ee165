"""What is uneven by itself is told once and is nobody's fault."""

import random

import pytest

from helpers.slow_worlds import Slow, World, w
from holdfast.detection.diagnosis import Cause


def ragged(step, microbatch):
    return random.Random(step * 1000 + microbatch).randint(16, 128)


def test_a_long_stage_is_told_once_as_the_models():
    world = World(2, 4, stage_factor=lambda stage: 1.5 if stage == 3 else 1.0)
    watcher = world.watcher()
    story = world.run(watcher, 100)
    assert story.faults() == []
    ((_, told),) = story.diagnoses()
    assert (told.cause, told.subject) == (Cause.MODEL, "stage 3")
    assert told.factor == pytest.approx(1.5, rel=0.05)
    assert told.workers == (w("0.3"), w("1.3"))
    assert "no fault" in told.evidence
    assert watcher.health() == ({}, {})


def test_even_stages_are_not_mentioned():
    world = World(2, 4, stage_factor=lambda stage: 1.0 + 0.03 * stage)
    assert world.run(world.watcher(), 60).diagnoses() == []


def test_a_long_stage_whose_only_holder_has_a_slow_benchmark_is_a_slow_worker():
    world = World(1, 4, slow=[Slow("0.3", 0, 60, factor=1.5)])
    watcher = world.watcher()
    story = world.run(watcher, 50)
    ((_, told),) = story.diagnoses()
    assert (told.cause, told.subject) == (Cause.COMPUTE, "0.3")
    assert told.factor == pytest.approx(1.5, rel=0.1)
    assert watcher.health().speeds.keys() == {w("0.3")}
    later = world.run(watcher, 50, first=50)
    assert [over.subject for _, over in later.overs()] == ["0.3"]
    assert watcher.health().speeds == {}


def test_a_long_stage_whose_only_holder_has_a_good_benchmark_is_the_models():
    world = World(1, 4, stage_factor=lambda stage: 1.5 if stage == 3 else 1.0)
    ((_, told),) = world.run(world.watcher(), 60).diagnoses()
    assert (told.cause, told.subject) == (Cause.MODEL, "stage 3")


def test_ragged_micro_batches_are_told_once_as_the_datas():
    world = World(size_of=ragged)
    watcher = world.watcher()
    ((_, told),) = world.run(watcher, 150).diagnoses()
    assert (told.cause, told.subject, told.workers) == (Cause.DATA, "data", ())
    assert told.factor > 1.3
    assert "sizes from" in told.evidence
    assert watcher.health() == ({}, {})


def test_ragged_micro_batches_of_unknown_size_are_known_by_their_times():
    class Unsized(World):
        def report(self, worker, step, common):
            report = super().report(worker, step, common)
            return report._replace(ops=tuple(op._replace(size=0) for op in report.ops))

    world = Unsized(size_of=ragged, microbatches=8)
    causes = [d.cause for _, d in world.run(world.watcher(), 60).diagnoses()]
    assert causes == [Cause.DATA]


def test_noise_of_single_operations_is_no_property_of_the_data():
    world = World(op_noise=0.2, microbatches=8)
    assert world.run(world.watcher(), 60).diagnoses() == []


def test_a_stage_that_is_long_in_some_steps_only_is_not_the_models():
    some = [Slow(f"{d}.1", step, step, factor=2.0) for d in (0, 1) for step in (3, 5, 6, 8, 9)]
    world = World(2, 3, slow=[*some, *(s._replace(first=11, last=11) for s in some[:1])])
    assert world.run(world.watcher(), 30).diagnoses(Cause.MODEL) == []
