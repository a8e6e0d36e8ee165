"""A worker whose process lives and whose own thread stands still in the user's code.

If the code holds the interpreter's lock, no heartbeat comes either.
"""

import os
import time

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, assert_nothing_left, paced, wait_until
from holdfast.observability.events import WorkerLost, WorkerStuck

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
NUMBERS = {"steps": 40, "microbatches": 6}
TIMEOUT_S, STUCK_S = 3.0, 10.0  # nobody else is silent, or in one operation, for so long
QUICK = f"workers.heartbeat_timeout_s={TIMEOUT_S}"
LIMITED = f"workers.stuck_limit_s={STUCK_S}"
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

def hold_still(where):
    """The same in a call that keeps the interpreter's lock, until somebody writes into the pipe."""
    try:
        here = pathlib.Path(__file__)
        os.rename(here.with_name(where), here.with_name("taken"))
    except FileNotFoundError:
        return
    pipe = os.open(here.with_name("pipe"), os.O_RDWR)
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    os.close(pipe)

'''
PLACES = {
    "__getitem__": (
        "        phase = torch",
        "        stand_still('__getitem__')\n        phase = torch",
    ),
    "held": (
        "        phase = torch",
        "        hold_still('held')\n        phase = torch",
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
        job.write_text("import ctypes\nimport os\n" + job.read_text())
        os.mkfifo(tmp_path / "pipe")
        words = ["train", str(job), *runs.layout("2x2"), "--steps", "40", "--microbatches", "6"]
        started.append(LiveRun(tmp_path, *words, *runs.settings(*settings)))
        return started[-1]

    yield start
    for run in started:
        run.close()


def standing(live: LiveRun) -> list[WorkerStuck]:
    """On a busy machine somebody else may be named who is only slow."""
    stuck = live.wait_for(WorkerStuck)
    return [e for e in stuck if "in stand_still\n" in e.stack or "in hold_still\n" in e.stack]


def named(live: LiveRun, folder, place, function) -> WorkerStuck:
    live.wait_for_steps(6)
    (folder / place).touch()
    wait_until((folder / "taken").exists, "somebody to stand still")
    wait_until(lambda: standing(live), "it to be named")
    [stuck] = standing(live)
    assert stuck.where.endswith((f"in {function}", "in stand_still", "in hold_still"))
    assert f"in {function}\n" in stuck.stack
    assert stuck.usual_s > 0
    assert stuck.seconds <= 3 * stuck.usual_s + 20  # from 1 on; the coordinator may be late
    assert os.path.exists(stuck.path)
    return stuck


def assert_named_and_left_behind(live: LiveRun, folder, place, undisturbed, function="") -> None:
    stuck = named(live, folder, place, function or place)
    [lost] = live.wait_for(WorkerLost)
    assert lost.worker == stuck.worker
    assert lost.cause.startswith("stuck in ")
    live.release()
    outcome = live.outcome()
    runs.finished(outcome)
    assert f"step {stuck.step + 1}  worker {stuck.worker} is stuck: " in outcome.stdout
    assert outcome.sha256 == undisturbed.sha256
    assert_nothing_left(outcome)


@pytest.mark.wide
def test_a_worker_that_is_stuck_in_the_data_set_is_named_and_left_behind(
    tmp_path, begin, undisturbed
):
    live = begin("__getitem__", LIMITED)
    assert_named_and_left_behind(live, tmp_path, "__getitem__", undisturbed)


@pytest.mark.wide
def test_a_worker_that_is_stuck_in_a_layer_is_lost_by_itself(tmp_path, begin, undisturbed):
    """With the limits as they are by default."""
    assert_named_and_left_behind(begin("forward"), tmp_path, "forward", undisturbed)


@pytest.mark.wide
def test_one_that_is_stuck_and_lets_no_heartbeat_through_is_named_and_left_behind(
    tmp_path, begin, undisturbed
):
    live = begin("held", QUICK, LIMITED)
    assert_named_and_left_behind(live, tmp_path, "held", undisturbed, "__getitem__")


@pytest.mark.wide
def test_one_that_lets_no_heartbeat_through_for_longer_than_the_heartbeat_timeout_is_not_lost(
    tmp_path, begin, undisturbed
):
    live = begin("held", QUICK, "workers.stuck_limit_s=200")
    stuck = named(live, tmp_path, "held", "__getitem__")
    assert stuck.operation == "mute"
    time.sleep(2 * TIMEOUT_S)  # it has been mute for longer than that
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(pipe, b"!")
    live.release()
    outcome = live.outcome()
    os.close(pipe)
    runs.finished(outcome)
    assert live.all_of(WorkerLost) == []
    assert outcome.sha256 == undisturbed.sha256
    assert_nothing_left(outcome)
