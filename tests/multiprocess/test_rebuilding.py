"""Real processes that really die, and nobody else holds their stage: it is rebuilt from the log.

HOLDFAST_SEED repeats a random sample; it is in the names of the tests and printed when one fails.
HOLDFAST_SWEEP=100 tries more.
"""

import random
from collections import Counter

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, assert_nothing_left, paced
from helpers.seed import SEED
from helpers.sweeps.chaos import PHASES, QUICK
from helpers.wide import where
from holdfast.observability.events import StageRebuilt, WorkerLost, WorkerReady

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
STEPS, MICROBATCHES, EVERY = 8, 6, 4
PACED_STEPS = 60  # at their slow pace they take longer than any test
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}
LOG = (
    "recovery.log=boundary",
    f"checkpoint.every_steps={EVERY}",
    "workers.heartbeat_timeout_s=30",  # a busy machine is no fault
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


def train(tmp_path, layout, faults, *settings):
    flags = [word for fault in faults for word in ("--fault", fault)]
    words = [*runs.layout(layout), *flags, *runs.settings(*LOG, *settings)]
    return runs.processes(jobs.mixed(tmp_path), tmp_path / "run", *words, **NUMBERS)


def assert_rebuilt(run, undisturbed, faults, stages, *, num_started=None):
    """As if nothing had happened; only the lost were started again; nothing is left behind."""
    runs.finished(run)
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert sorted(run.summary["faults_fired"]) == sorted(faults)
    assert not run.summary["went_back"]
    assert {s for one in run.summary["rebuilt"] for s in one["stages"]} == set(stages)
    hellos = Counter(event.worker for event in run.events if isinstance(event, WorkerReady))
    again = sum(hellos.values()) - len(hellos)
    assert again == (len(faults) if num_started is None else num_started), hellos
    assert_nothing_left(run)
    assert_no_log_left(run)


def assert_no_log_left(run):
    left = {path.name for path in run.run_dir.iterdir()}
    assert not left & {"log", "rebuilt"}, left


FIXED = {
    "in the middle of its operations": ["kill 0.2 @ 7.B1"],
    "half-way through the optimizer step": ["kill 0.1 @ 7.half"],
    "and another one that replays": ["kill 0.2 @ 7.B1", "kill 0.0 @ 5.replay"],
    "and its replacement": ["kill 0.2 @ 6.B1", "kill 0.2 @ 7.reduced"],
    "with its neighbour": ["kill 0.2 @ 7.B1", "kill 0.1 @ 5.halt"],
    "at the first stage": ["kill 0.0 @ 7.F2"],
    "at the last stage, when all is told": ["kill 0.3 @ 7.settled"],
}
USUAL = {"and another one that replays"}


@pytest.mark.parametrize("when", where(USUAL.__contains__, FIXED))
def test_the_only_holder_of_a_stage_killed_leaves_no_trace_in_the_result(
    tmp_path, undisturbed, when
):
    faults = FIXED[when]
    run = train(tmp_path, "1x4", faults)
    assert_rebuilt(run, undisturbed, faults, {int(fault.split()[1][2]) for fault in faults})


@pytest.mark.wide
@pytest.mark.parametrize("number", range(1 if QUICK else 8), ids=lambda number: f"{SEED}-{number}")
def test_nor_does_one_killed_at_a_random_point(tmp_path, undisturbed, number):
    dice = random.Random(f"{SEED}-lost-{number}")
    operations = [f"{kind}{m}{done}" for kind in "FBW" for m in range(6) for done in ("", ".done")]
    stage, point = dice.randrange(4), dice.choice((*operations, *PHASES))
    faults = [f"kill 0.{stage} @ {dice.randint(2, STEPS)}.{point}".removesuffix(".begin")]
    print(f"HOLDFAST_SEED={SEED}: {faults}")  # noqa: T201
    run = train(tmp_path, "1x4", faults)
    assert_rebuilt(run, undisturbed, faults, {stage})


@pytest.mark.wide
def test_both_holders_of_a_stage_may_die(tmp_path, undisturbed):
    faults = ["kill 0.1 @ 7.B0", "kill 1.1 @ 7.B0"]
    run = train(tmp_path, "2x2", faults)
    assert_rebuilt(run, undisturbed, faults, {1}, num_started=1)


ALONE = ["recovery.helpers=0", "recovery.mode=swift"]


@pytest.mark.wide
@pytest.mark.parametrize("setting", ALONE[:1] if QUICK else ALONE)
def test_the_replacement_may_do_it_alone(tmp_path, undisturbed, setting):
    faults = ["kill 0.1 @ 7.B1"]
    run = train(tmp_path, "1x4", faults, setting)
    assert_rebuilt(run, undisturbed, faults, {1})
    [rebuilt] = run.summary["rebuilt"]
    assert rebuilt["workers"] == ["0.1"]


@pytest.mark.wide
def test_one_killed_from_outside_is_rebuilt_while_the_others_keep_their_processes(tmp_path):
    words = ["train", str(paced(tmp_path)), *runs.layout("1x4"), "--steps", str(PACED_STEPS)]
    words += ["--microbatches", str(MICROBATCHES), *runs.settings(*LOG)]
    live = LiveRun(tmp_path, *words)
    try:
        live.wait_for_steps(2)
        before = live.workers
        dead = live.kill("0.2")
        live.wait_for(WorkerLost, worker="0.2")
        live.wait_for(StageRebuilt)
        live.release()
        run = live.outcome()
    finally:
        live.close()
    runs.finished(run)
    assert not run.summary["went_back"]
    assert {w: pid for w, pid in live.workers.items() if w != "0.2"} == {
        w: pid for w, pid in before.items() if w != "0.2"
    }
    assert live.workers["0.2"] != dead
    numbers = {"steps": PACED_STEPS, "microbatches": MICROBATCHES}
    alone = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "alone", **numbers))
    assert (run.sha256, run.losses) == (alone.sha256, alone.losses)
    assert_nothing_left(run)


@pytest.mark.wide
def test_the_command_line_of_the_manual(tmp_path):
    """On the example, as a user would type it, with fewer steps."""
    words = ["--pipelines", "1", "--stages", "4", "--set", "recovery.log=boundary"]
    words += ["--set", "recovery.log_budget=2GB", "--fault", "kill 0.2 @ 7"]
    words += runs.settings("workers.heartbeat_timeout_s=30")
    run = runs.finished(runs.processes(runs.TINY_GPT, tmp_path / "run", *words, steps=10))
    calm = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "calm", steps=10))
    assert (run.sha256, run.losses) == (calm.sha256, calm.losses)
    [rebuilt] = run.summary["rebuilt"]
    assert (rebuilt["stages"], rebuilt["replayed"]) == ([2], [2])
    assert "  stage 2 rebuilt from the log in " in run.stdout
    assert set(run.summary["log_bytes"]) == {"0.0", "0.1", "0.2", "0.3"}
    assert_nothing_left(run)
    assert_no_log_left(run)


@pytest.mark.wide
def test_the_log_of_a_run_that_failed_is_left_and_the_resumed_run_drops_it(tmp_path, undisturbed):
    run = train(tmp_path, "1x4", ["kill 0.2 @ 7.B1"], "workers.restarts=0")
    assert run.exit_code == 1
    [line] = run.stderr.splitlines()
    for part in ("worker 0.2", "signal SIGKILL", "3 live workers cannot hold 4 stages", "--resume"):
        assert part in line
    assert_nothing_left(run)
    assert {"0.0", "0.1", "0.2", "0.3"} <= {path.name for path in (run.run_dir / "log").iterdir()}
    words = [*runs.layout("1x4"), "--resume", str(run.run_dir), *runs.settings(*LOG)]
    job = tmp_path / "mixed.py"
    resumed = runs.finished(runs.threads(job, run.run_dir, *words, **NUMBERS))
    assert resumed.sha256 == undisturbed.sha256
    assert_no_log_left(resumed)


@pytest.mark.wide
def test_a_resumed_run_rebuilds_from_the_checkpoint_that_it_was_resumed_from(tmp_path, undisturbed):
    first = train(tmp_path, "1x4", ["kill 0.2 @ 7.B1"], "workers.restarts=0")
    assert "3 live workers cannot hold 4 stages" in first.stderr
    words = [*runs.layout("1x4"), "--resume", str(first.run_dir), "--fault", "kill 0.1 @ 8.B1"]
    words += runs.settings(*LOG, "workers.restarts=3")  # the run remembers that it was 0
    job = tmp_path / "mixed.py"
    run = runs.finished(runs.processes(job, first.run_dir, *words, **NUMBERS))
    assert run.sha256 == undisturbed.sha256
    assert not run.summary["went_back"]
    assert [one["stages"] for one in run.summary["rebuilt"]] == [[1]]
    assert_no_log_left(run)
