"""Checkpoints at an address: the same bits after a resume, whatever becomes of the server."""

import pytest

from helpers import runs
from holdfast.observability.events import CheckpointFailed, CheckpointSaved
from holdfast.runtime.state import saving
from holdfast.storage.remote.bucket import FolderBucket
from holdfast.storage.stores import find

SAVES = ("checkpoint.every_steps=2", "checkpoint.first_step=0", "checkpoint.keep=1")


def to(address: str, *more: str) -> list[str]:
    return runs.settings(f"checkpoint.dir={address}", *SAVES, *more)


def saved(run: runs.Outcome) -> list[int]:
    return [event.step for event in run.events if isinstance(event, CheckpointSaved)]


def resumed(place, run_dir, *more: str) -> runs.Outcome:
    return runs.holdfast(["train", "--resume", str(place), *more], run_dir)


def test_a_run_resumed_from_a_shared_folder_ends_with_the_same_bits(tmp_path):
    whole = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "whole", steps=6))
    address = f"file://{tmp_path}/shared/run"
    words = runs.layout("1x2") + to(address)
    half = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "half", *words, steps=4))
    assert saved(half) == [2, 4]
    assert not list((tmp_path / "half" / "checkpoints").glob("step-*"))
    assert find(address).step == 4
    go_on = ["--run-dir", str(tmp_path / "rest"), "--steps", "6"]
    rest = runs.finished(resumed(address, tmp_path / "rest", *go_on))
    assert rest.sha256 == whole.sha256
    assert find(address).step == 6
    again = resumed(half.run_dir, half.run_dir, "--steps", "8")  # which names the address
    assert find(runs.finished(again).run_dir).step == 8
    assert again.summary["first_step"] == 6


def test_a_run_without_a_checkpoint_to_go_on_from_takes_no_address_of_another(tmp_path):
    address = f"file://{tmp_path}/shared/run"
    runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "one", *to(address), steps=2))
    other = runs.threads(runs.TINY_GPT, tmp_path / "two", *to(address), steps=2)
    assert other.exit_code == 2
    assert f"checkpoint.dir={address}: already holds a run" in other.stderr
    assert f"holdfast train --resume {address}" in other.stderr
    assert other.stderr.count("\n") == 1
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("place", ["s3://b/../a", "ftp://b/a"])
def test_an_address_that_is_none_is_refused_in_one_line(tmp_path, place):
    refused = resumed(place, tmp_path)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert f"{place}: expected an address" in refused.stderr


def test_storage_that_is_away_for_a_while_costs_a_checkpoint_and_no_step(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "PAUSES_S", (0.0,))
    put, refused = FolderBucket.put_file, []

    def away_at_first(self, key, path):
        if "step-00000002" in key:
            refused.append(key)
            raise OSError(111, "Connection refused")
        put(self, key, path)

    monkeypatch.setattr(FolderBucket, "put_file", away_at_first)
    address = f"file://{tmp_path}/shared/run"
    run = runs.finished(runs.threads(runs.TINY_GPT, tmp_path / "run", *to(address), steps=6))
    [failed] = [event for event in run.events if isinstance(event, CheckpointFailed)]
    assert (failed.step, failed.reason) == (2, "Connection refused")
    assert len(refused) == 2  # it was tried again
    assert saved(run)[-1] == find(address).step == 6
