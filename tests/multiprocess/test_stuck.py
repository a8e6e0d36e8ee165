"""A worker whose process lives and whose own thread stands still in the user's code."""

import os

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, assert_nothing_left, paced, wait_until
from holdfast.observability.events import WorkerLost, WorkerStuck

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
NUMBERS = {"steps": 40, "microbatches": 6}
STANDS_STILL = '''
def stand_still(where):
    """Whoever takes the file first, once."""
    try:
        here = pathlib.Path(__file__)
        os.rename(here.with_name(where), here.with_name("taken"))
    except FileNotFoundError:
        return
    while True:
        time.sleep(1)

'''
PLACES = {
    "__getitem__": (
        "        phase = torch",
        "        stand_still('__getitem__')\n        phase = torch",
    ),
    "forward": (
        "        return x + self",
        "        stand_still('forward')\n        return x + self",
    ),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


@pytest.fixture
def begin(tmp_path):
    started = []

    def start(place, *settings):
        job = paced(tmp_path)
        text = job.read_text().replace(*PLACES[place])
        job.write_text(text.replace("WIDTH = 12\n", "WIDTH = 12\n" + STANDS_STILL, 1))
        job.write_text("import os\n" + job.read_text())
        words = ["train", str(job), *runs.layout("2x2"), "--steps", "40", "--microbatches", "6"]
        started.append(LiveRun(tmp_path, *words, *runs.settings(*settings)))
        return started[-1]

    yield start
    for run in started:
        run.close()


def assert_named_and_left_behind(live: LiveRun, folder, place, undisturbed) -> None:
    live.wait_for_steps(6)
    (folder / place).touch()
    wait_until((folder / "taken").exists, "somebody to stand still")
    [stuck] = live.wait_for(WorkerStuck)
    assert stuck.where.endswith(f"in {place}") or stuck.where.endswith("in stand_still")
    assert f"in {place}\n" in stuck.stack
    assert stuck.usual_s > 0
    assert stuck.seconds <= 3 * stuck.usual_s + 2
    assert os.path.exists(stuck.path)
    [lost] = live.wait_for(WorkerLost)
    assert lost.worker == stuck.worker
    assert lost.cause.startswith("stuck in ")
    live.release()
    outcome = live.outcome()
    runs.finished(outcome)
    assert f"worker {stuck.worker} is stuck in step {stuck.step + 1}" in outcome.stdout
    assert outcome.sha256 == undisturbed.sha256
    assert_nothing_left(outcome)


def test_a_worker_that_is_stuck_in_the_data_set_is_named_and_left_behind(
    tmp_path, begin, undisturbed
):
    live = begin("__getitem__", "workers.stuck_limit_s=4")
    assert_named_and_left_behind(live, tmp_path, "__getitem__", undisturbed)


@pytest.mark.wide
def test_a_worker_that_is_stuck_in_a_layer_is_lost_by_itself(tmp_path, begin, undisturbed):
    """With the limits as they are by default."""
    assert_named_and_left_behind(begin("forward"), tmp_path, "forward", undisturbed)
