"""Checkpoints in S3, with a server in a process of its own."""

import threading

import pytest

from helpers import runs, s3_server
from helpers.s3_server import S3Server
from holdfast.errors import CheckpointError
from holdfast.observability.events import CheckpointFailed, CheckpointSaved
from holdfast.storage.remote.object_bucket import open_bucket
from holdfast.storage.remote.remote_store import RemoteStore
from holdfast.storage.stores import find

pytestmark = pytest.mark.wide
ADDRESS, LAUNCH = "s3://bucket/run", "launches/00000001.json"
SAVES = runs.settings("checkpoint.every_steps=2", "checkpoint.first_step=0", "checkpoint.keep=2")
TO_S3 = [*SAVES, *runs.settings(f"checkpoint.dir={ADDRESS}")]


@pytest.fixture
def server(monkeypatch):
    s3_server.skip_without_packages()
    started = S3Server()
    started.start("bucket")
    s3_server.use(started, monkeypatch)
    yield started
    started.kill()


def saved(run):
    return [event.step for event in run.events if isinstance(event, CheckpointSaved)]


def test_a_run_resumed_from_s3_ends_with_the_same_bits(server, tmp_path):
    whole = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "whole", steps=6))
    words = [*runs.layout("2x2"), *TO_S3]
    half = runs.finished(runs.processes(runs.TINY_GPT, tmp_path / "half", *words, steps=4))
    assert saved(half)[-1] == find(ADDRESS).step == 4
    go_on = ["train", "--resume", ADDRESS, "--run-dir", str(tmp_path / "rest"), "--steps", "6"]
    rest = runs.finished(runs.holdfast(go_on, tmp_path / "rest"))
    assert rest.sha256 == whole.sha256
    assert [key for key in open_bucket(ADDRESS).sizes("launches/")] == [
        "launches/00000001.json",
        "launches/00000002.json",
    ]


def test_of_two_writers_of_a_manifest_exactly_one_wins(server, tmp_path):
    bucket, start, won = open_bucket(ADDRESS), threading.Barrier(8), []

    def put(number):
        start.wait(60)
        if bucket.put_if_absent("checkpoints/step-00000002/manifest.json", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [winner] = won
    assert bucket.read("checkpoints/step-00000002/manifest.json") == b"%d" % winner
    store = RemoteStore("s3://bucket/other", tmp_path)
    store.open(None)
    RemoteStore("s3://bucket/other", tmp_path).open(None)
    with pytest.raises(CheckpointError, match="launch 2 of the run has taken over"):
        store.seal(2, [], seed=0, microbatches=1)


def test_a_large_file_goes_in_pieces_and_comes_back_as_it_was(server, tmp_path):
    bucket, path = open_bucket(ADDRESS), tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 100_000)
    bucket.put_file("a/large", path)
    assert bucket.sizes("a/") == {"a/large": 25_600_000}
    bucket.fetch("a/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_a_server_that_is_killed_and_comes_back_costs_no_step(server, tmp_path, monkeypatch):
    whole = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "whole", steps=12))
    put, killed = RemoteStore.put_part, []

    def put_part(self, step, name, digests):
        if step == 4 and not killed:
            killed.append(open_bucket(ADDRESS).read(LAUNCH))
            server.kill()
        if step >= 8 and len(killed) == 1:
            server.start("bucket")
            assert open_bucket(ADDRESS).put_if_absent(LAUNCH, *killed)  # moto keeps nothing
            killed.append(b"and started again")
        put(self, step, name, digests)

    monkeypatch.setattr(RemoteStore, "put_part", put_part)
    run = runs.threads(runs.TINY_GPT, tmp_path / "run", *TO_S3, steps=12)
    assert runs.finished(run).sha256 == whole.sha256
    assert any(isinstance(event, CheckpointFailed) for event in run.events)
    assert len(killed) == 2
    assert saved(run)[-1] == find(ADDRESS).step == 12


@pytest.mark.parametrize(
    ("address", "environment", "words"),
    [
        ("s3://nobucket/run", {}, "this bucket does not exist; make it, or choose another"),
        (ADDRESS, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no access; set AWS_"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    server, tmp_path, monkeypatch, address, environment, words
):
    for name in environment:
        monkeypatch.delenv(name)
    words_given = runs.settings(f"checkpoint.dir={address}")
    run = runs.threads(runs.TINY_GPT, tmp_path / "run", *words_given, steps=2)
    assert (run.exit_code, run.stderr.count("\n")) == (2, 1)
    assert words in run.stderr
