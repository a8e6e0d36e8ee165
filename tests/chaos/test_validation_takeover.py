"""The coordinator dies while the model is validated: the next one finds the same, and the same
best."""

import json

import pytest

from helpers import jobs
from helpers.sweeps.chaos import Executions
from helpers.sweeps.chaos_order import unhurried_joins
from helpers.sweeps.mortal import Life
from helpers.sweeps.twin import Fate, Twin
from helpers.wide import first
from holdfast.observability import events
from holdfast.storage.best import BEST_FILE

STEPS, EVERY = 12, 3
# Each is better than those before by less than this.
VALIDATION = {"every": EVERY, "keep_best": "min far", "patience": 2, "min_delta": 0.5}
# Step that is finished, and stimuli since. From 7 on only the journal knows of the second one.
POINTS = [(7, 2), (6, 2), (6, 5), (6, 16), (3, 1), (3, 2), (3, 4), (3, 6), (3, 9)]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        executions = Executions()
        executions.watch(patch)
        unhurried_joins(patch)
        yield Twin(tmp_path_factory.mktemp("twin"), patch, executions, text=jobs.VALIDATED)


def run(twin, *lives):
    story = twin.run(Fate(lives), steps=STEPS, validation=VALIDATION)
    newest = max(twin.folder.glob("twin-*"), key=lambda folder: int(folder.name.split("-")[1]))
    return story, json.loads((newest / "run" / BEST_FILE).read_text())


@pytest.fixture(scope="module")
def calm(twin):
    story, best = run(twin)
    assert [one.step for one in story.summary.validations] == [3, 6, 9]
    assert best["step"] == 3
    assert "2 validations in a row" in story.summary.stopped_early
    return story, best


@pytest.mark.parametrize(("from_step", "dies_at"), first(1, POINTS))
def test_the_next_one_finds_the_same(twin, calm, from_step, dies_at):
    life = Life(dies_at, str(dies_at), from_step=from_step)
    story, best = run(twin, life)
    assert life.last, "it did not die"
    assert [event for event in story.seen if isinstance(event, events.TookOver)]
    assert story.summary.parameters_sha256 == calm[0].summary.parameters_sha256
    told = {e.step: (e.loss, e.metrics) for e in story.seen if isinstance(e, events.Validated)}
    assert told == {one.step: (one.loss, one.metrics) for one in calm[0].summary.validations}
    assert story.summary.stopped_early == calm[0].summary.stopped_early
    assert best == calm[1]
    assert not story.stayed
