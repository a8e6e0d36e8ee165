"""The coordinator dies at any message and timer: workers keep what they have, and go on."""

import random

import pytest

from helpers.seed import SEED
from helpers.sweeps.chaos import Executions
from helpers.sweeps.twin import STEPS, Twin, TwinStory
from helpers.wide import first_two
from holdfast.errors import Deposed
from holdfast.observability import events

NUM_POINTS = 300
NUM_STIMULI = 120  # about; a calm run has more


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        executions = Executions()
        executions.watch(patch)
        yield Twin(tmp_path_factory.mktemp("twin"), patch, executions)


@pytest.fixture(scope="module")
def calm(twin) -> TwinStory:
    return twin.run()


def test_the_calm_run_has_a_death_a_join_and_a_switch(calm):
    assert calm.summary.outcome == "finished"
    assert calm.summary.num_lost == 1
    assert len(calm.summary.joins) == 1
    assert "better plan" in [switch["cause"] for switch in calm.summary.switches]
    assert calm.num_stimuli >= NUM_STIMULI
    assert calm.done_again() == []


@pytest.mark.parametrize("number", first_two(3, 12, range(NUM_POINTS)))
def test_it_may_die_at_any_message_or_timer(twin, calm, number):
    dies_at = random.Random(f"{SEED}-{number}").randint(1, calm.num_stimuli - 10)
    story = twin.run(dies_at, seed=number)
    assert story.summary.parameters_sha256 == calm.summary.parameters_sha256, str(story)
    assert story.summary.outcome == "finished", str(story)
    assert list(story.summary.losses) == list(calm.summary.losses), str(story)
    assert story.done_again() == [], str(story)
    assert not story.summary.went_back, str(story)
    assert story.took_over or any(isinstance(e, events.RunFinished) for e in story.events)
    assert len(story.summary.losses) == STEPS


@pytest.mark.wide
def test_one_that_slept_while_another_took_over_changes_nothing_when_it_wakes(twin):
    """Its workers have left it as soon as it was silent for some seconds."""
    story = twin.run_suspended(40)
    assert story.summary is not None
    assert story.summary.outcome == "finished"
    assert any(isinstance(event, events.TookOver) for event in story.events)
    assert [type(why) for why in story.failed] == [Deposed]
    decided = (events.RunFailed, events.RunFinished, events.Recovered, events.CheckpointSaved)
    assert not [event for event in story.after if isinstance(event, decided)]
