"""The coordinator dies at any message and timer: workers keep what they have, and go on."""

import random
from collections import Counter

import pytest

from helpers.etcd_fake import FakeEtcd, served
from helpers.etcd_server import etcd_cluster
from helpers.seed import SEED
from helpers.sweeps.chaos import Executions
from helpers.sweeps.chaos_order import unhurried_joins
from helpers.sweeps.mortal import AT_THE_END, Life
from helpers.sweeps.twin import LONG, STEPS, Fate, Twin, TwinStory, Way
from helpers.wide import first_two
from holdfast.control.takeover import regaining
from holdfast.errors import Deposed
from holdfast.observability import events

NUM_STIMULI = 120  # at least, of a calm run
NUM_POINTS = 320  # each stimulus of a calm run once; the rest at random
NUM_ETCD, NUM_REAL_ETCD = 60, 6
NUM_PAIRS = 24
NUM_SUSPENDED = 12
JOINED_BY = 8  # step: all four are there again


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A twin for each kind of journal."""
    with pytest.MonkeyPatch.context() as patch:
        executions = Executions()
        executions.watch(patch)
        unhurried_joins(patch)  # all four are there again by the step that is expected
        yield lambda **etcd: Twin(tmp_path_factory.mktemp("twin"), patch, executions, **etcd)


@pytest.fixture(scope="module")
def twin(twins):
    return twins()


@pytest.fixture(scope="module")
def etcd_twin(twins):
    fake = FakeEtcd()
    with served(fake) as address:
        yield twins(etcd=f"etcd://{address}", fake=fake)


@pytest.fixture(scope="module")
def real_etcd_twin(twins, tmp_path_factory):
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield twins(etcd=cluster.address("").rstrip("/"))


@pytest.fixture(scope="module")
def calm(twin) -> TwinStory:
    return twin.run(Fate((Life(0, "calm"),)))


@pytest.fixture
def counted(tally, request):
    """For the end of the test run: where coordinators have died, by kind of stimulus."""

    def count(story: TwinStory) -> TwinStory:
        name = request.node.originalname.removeprefix("test_")
        died = [life.last for life in story.lives if life.last]
        begun = "nothing had begun" if story.summary is None else "ended"
        tally.counts[name].update(Counter([*died, begun]))
        return story

    return count


def num_stimuli(story: TwinStory) -> int:
    return story.lives[0].num_stimuli


def dice(kind: str, number: int) -> random.Random:
    return random.Random(f"{SEED}-{kind}-{number}")


def once(number: int, calm: TwinStory, kind: str = "") -> Fate:
    """At stimulus ``number``, if there are so many; else at any. Sometimes nobody is there for a
    while."""
    at = dice(kind, number)
    first = number if 1 <= number <= num_stimuli(calm) else at.randint(1, num_stimuli(calm))
    return Fate((Life(first, f"{kind}-{number}"),), away_s=at.choice((0.0, 0.0, 0.1, 0.5)))


def check_same(story: TwinStory, calm: TwinStory) -> None:
    if story.summary is None:  # at the very first one, and nobody had been told to train
        assert story.lives[0].ends_at == 1, str(story)
        assert story.ran == []
        return
    assert story.summary.parameters_sha256 == calm.summary.parameters_sha256, str(story)
    assert story.summary.outcome == "finished", str(story)
    assert story.summary.losses == calm.summary.losses, str(story)
    assert len(story.summary.losses) == STEPS
    assert story.done_again() == [], str(story)
    late = {e.worker for e in story.seen if isinstance(e, events.JoinUnfinished)}
    assert {name.split()[-1] for name in story.stayed} <= late, str(story)
    assert not story.summary.went_back, str(story)
    died = [life for life in story.lives if life.last and not life.had_ended]
    assert len(story.taken_over_s) >= min(len(died), 1), str(story)


def test_the_calm_run_has_a_death_a_join_and_a_switch(calm):
    assert calm.summary.outcome == "finished"
    assert calm.summary.num_lost == 1
    assert len(calm.summary.joins) == 1
    assert "better plan" in [switch["cause"] for switch in calm.summary.switches]
    assert num_stimuli(calm) >= NUM_STIMULI
    assert calm.done_again() == []


@pytest.mark.parametrize("number", first_two(2, 13, range(NUM_POINTS)))
def test_it_may_die_at_any_message_or_timer(twin, calm, counted, number):
    check_same(counted(twin.run(once(NUM_POINTS - number, calm))), calm)


@pytest.mark.parametrize("number", first_two(2, 2, range(8)))
def test_it_may_die_while_it_tells_all_that_the_run_is_finished(twin, calm, counted, number):
    """Those who were not told do not wait for ever."""
    story = counted(twin.run(Fate((Life(AT_THE_END, str(number)),))))
    check_same(story, calm)
    assert story.lives[0].had_ended
    assert not any("did not come back" in str(event) for event in story.seen)


@pytest.mark.parametrize("number", first_two(1, 3, range(NUM_ETCD)))
def test_it_may_die_with_its_journal_in_etcd(etcd_twin, calm, counted, number):
    check_same(counted(etcd_twin.run(once(-number, calm, "etcd"))), calm)


@pytest.mark.cluster
@pytest.mark.parametrize("number", range(NUM_REAL_ETCD))
def test_it_may_die_with_its_journal_in_a_real_etcd(real_etcd_twin, calm, counted, number):
    check_same(counted(real_etcd_twin.run(once(-number, calm, "real etcd"))), calm)


@pytest.mark.parametrize("number", first_two(1, 3, range(NUM_PAIRS)))
def test_its_successor_may_die_too(twin, calm, counted, number):
    """Soon after it has come, or later."""
    at = dice("twice", number)
    lives = (
        Life(at.randint(1, num_stimuli(calm) * 3 // 4), f"first-{number}"),
        Life(at.choice((at.randint(1, 12), at.randint(1, 60))), f"second-{number}"),
    )
    story = counted(twin.run(Fate(lives, away_s=at.choice((0.0, 0.0, 0.3)))))
    check_same(story, calm)


@pytest.mark.parametrize("number", first_two(1, 3, range(NUM_PAIRS)))
def test_a_worker_may_die_while_nobody_leads(twin, calm, counted, number):
    """Or just before, or just after."""
    at = dice("worker", number)
    step, point = at.randint(JOINED_BY, STEPS - 2), at.choice(("F1", "B1", "W2", "reduced"))
    worker = at.choice(("0.0", "0.1", "1.0", "1.1"))
    life = Life(at.randint(1, 12), f"worker-{number}", from_step=step - at.randint(0, 1))
    away_s = at.choice((0.0, 0.3))
    story = counted(twin.run(Fate((life,), away_s, {worker: f"{step}.{point}"})))
    check_same(story, calm)
    assert worker in story.killed_s


@pytest.mark.wide
def test_one_that_loses_etcd_alone_is_left_for_the_one_that_leads(etcd_twin, monkeypatch):
    """It hears its workers, and they hear it: only it does not know whether it leads."""
    monkeypatch.setattr(regaining, "REGAIN_LIMIT_S", 15.0)
    undisturbed = etcd_twin.run(**LONG)
    way = Way()
    with served(etcd_twin.fake, lambda: way.is_cut) as address:
        way.address = f"etcd://{address}"
        story = etcd_twin.run_cut_off(way)
    assert story.summary.outcome == "finished"
    assert story.summary.parameters_sha256 == undisturbed.summary.parameters_sha256
    assert not story.summary.went_back
    assert not [event for event in story.seen if isinstance(event, events.WorkerLost)]
    assert any(isinstance(event, events.TookOver) for event in story.seen)
    assert [type(why) for why in story.failed] == [Deposed]
    assert story.stays


@pytest.mark.parametrize("number", first_two(0, 2, range(NUM_SUSPENDED)))
def test_one_that_slept_while_another_took_over_changes_nothing_when_it_wakes(
    etcd_twin, calm, number
):
    """Its workers have left it as soon as it was silent for some seconds. Of what it had heard
    before it may make events."""
    at = dice("asleep", number)
    # A run in which nobody dies or joins has fewer than the calm one.
    story = etcd_twin.run_suspended(at.randint(1, NUM_STIMULI // 2), str(number))
    assert story.summary is not None
    assert story.summary.outcome == "finished"
    assert story.summary.parameters_sha256 == calm.summary.parameters_sha256
    assert any(isinstance(event, events.TookOver) for event in story.seen)
    assert [type(why) for why in story.failed] == [Deposed], (story.life, story.failed)
    assert story.stays, story.life
    decided = (events.RunFailed, events.RunFinished, events.CheckpointSaved)
    assert not [event for event in story.after if isinstance(event, decided)], story.life
