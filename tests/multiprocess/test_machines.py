"""Runs over several machines that share nothing but a network."""

from collections.abc import Iterator

import pytest

from helpers import jobs, runs
from helpers.hosts import Host, hosts, why_not
from helpers.run_on_host import LIMIT_S, MICROBATCHES, STEPS, RunOnHost
from holdfast.observability.events import StepFinished, WorkerJoined

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    done = runs.threads(jobs.mixed(folder), folder / "run", *runs.layout("2x2"), **numbers)
    return runs.finished(done).sha256


@pytest.fixture
def two() -> Iterator[tuple[Host, ...]]:
    with hosts(2) as machines:
        yield machines


@pytest.mark.parametrize(
    ("listen", "advertise", "own_words"),
    [
        ("0.0.0.0", "", []),
        # Each name has an IPv4 address, too: there nobody listens on the first.
        ("fd77::1", "h0", ["--listen", "::", "--advertise", "h1"]),
    ],
    ids=["all-addresses", "ipv6-and-names"],
)
def test_a_worker_of_another_machine_takes_the_place_of_a_lost_one(
    two, undisturbed, tmp_path, listen, advertise, own_words
):
    here, there = two
    settings = [f"network.listen={listen}", f"network.advertise={advertise}"]
    run = RunOnHost(here, tmp_path, *settings)
    run.wait_for(StepFinished)
    run.kill("1.1")
    joiner = run.join_from(there, *own_words)
    run.wait_for(WorkerJoined)
    assert run.all_of(WorkerJoined)[0].worker == "1.1"
    assert run.sha256() == undisturbed
    assert joiner.wait(LIMIT_S) == 0
    assert joiner.stdout.startswith("joining as worker 1.1")


SENT = """
import numbers_of_job
HOLDFAST_FILES = ["data/*.txt"]
assert (pathlib.Path(__file__).parent / "data" / "a.txt").read_text() == "seven"
"""


def test_a_machine_without_the_job_gets_it_from_the_run_as_it_was_at_the_start(
    two, undisturbed, tmp_path
):
    here, there = two
    beside = here.file("/tmp/job")
    (beside / "data").mkdir(parents=True)
    files = {"numbers_of_job.py": "SEVEN = 7\n", "data/a.txt": "seven"}
    for name, text in files.items():
        (beside / name).write_text(text)
    run = RunOnHost(here, tmp_path, "network.listen=0.0.0.0", more=SENT)
    run.wait_for(StepFinished)
    for name in files:
        (beside / name).write_text("raise SystemExit('was changed after the start')")
    run.kill("1.1")
    joiner = run.join_from(there, with_job=False)
    run.wait_for(WorkerJoined)
    assert not there.file("/tmp/job").exists()
    assert run.sha256() == undisturbed
    assert joiner.wait(LIMIT_S) == 0
