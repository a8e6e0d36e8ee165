"""Checkpoints that cannot be written, and replicas that are not alike: real runs, in threads."""

import shutil
import subprocess

import pytest
import torch

from helpers import jobs, runs
from helpers.runs import settings
from helpers.wide import first
from holdfast.observability.events import CheckpointFailed, CheckpointSaved, WentBack
from holdfast.runtime.state import saving
from holdfast.runtime.step.stage_saves import EpochSaves

FULL = "No space left on device"
NUMBERS = {"steps": 12, "microbatches": 4}
EVERY = settings("checkpoint.every_steps=4")


@pytest.fixture
def job(tmp_path):
    return jobs.mixed(tmp_path)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    run = runs.threads(jobs.mixed(folder), folder / "run", *runs.layout("2x2"), **NUMBERS)
    return runs.finished(run)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(saving, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(saving, "LAST_PAUSES_S", (0.0, 0.0))


def saved_steps(run):
    return [event.step for event in run.events if isinstance(event, CheckpointSaved)]


def left_of(run):
    return sorted(path.name for path in (run.run_dir / "checkpoints").glob("*/*") if path.is_dir())


def break_disk(monkeypatch, is_broken):
    """``is_broken``: whether a worker cannot write a version's part."""
    save, write_part, broken = EpochSaves.save, saving.write_part, set()

    def note(self, version, **more):
        if is_broken(str(self.stage.me), version):
            broken.add((version, self.stage.saver.name))
        save(self, version, **more)

    def write(folder, tensors):
        digests = write_part(folder, tensors)
        version = int(folder.parent.name.removeprefix("step-").removesuffix(".partial"))
        if (version, folder.name) in broken:
            raise OSError(28, FULL)
        return digests

    monkeypatch.setattr(EpochSaves, "save", note)
    monkeypatch.setattr(saving, "write_part", write)
    return broken


def test_r6_another_holder_saves_what_one_cannot_write(monkeypatch, impatient, job, tmp_path, calm):
    break_disk(monkeypatch, lambda worker, version: worker == "0.1")
    run = runs.threads(job, tmp_path / "run", *runs.layout("2x2"), *EVERY, **NUMBERS)
    assert runs.finished(run).sha256 == calm.sha256
    told = [event for event in run.events if isinstance(event, CheckpointFailed)]
    assert {(e.worker, e.reason, e.next_writer) for e in told} == {("0.1", FULL, "1.1")}
    assert saved_steps(run)[-1] == 12
    assert run.summary["checkpoints_failed"][0]["worker"] == "0.1"


def test_r6_nobody_can_write_for_a_while_and_then_all_is_well(
    monkeypatch, impatient, job, tmp_path, calm
):
    break_disk(monkeypatch, lambda worker, version: version < 8)
    run = runs.threads(job, tmp_path / "run", *runs.layout("2x2"), *EVERY, **NUMBERS)
    assert runs.finished(run).sha256 == calm.sha256
    assert [event for event in run.events if isinstance(event, CheckpointFailed)]
    assert min(saved_steps(run)) >= 8
    assert saved_steps(run)[-1] == 12
    assert {name.partition(".")[2] for name in left_of(run)} == {""}


def test_r6_a_run_whose_end_cannot_be_saved_says_what_is_lost(
    monkeypatch, impatient, job, tmp_path
):
    break_disk(monkeypatch, lambda worker, version: version > 10)
    run = runs.threads(job, tmp_path / "run", *runs.layout("1x2"), *EVERY, **NUMBERS)
    assert run.exit_code == 1
    [line] = run.stderr.splitlines()
    assert "the last checkpoint, of step 12, could not be written" in line
    assert f"{FULL}); step 8 is kept, later steps are lost" in line
    assert f"holdfast train --resume {run.run_dir}/checkpoints/step-00000008" in line


def can_mount():
    unshare = shutil.which("unshare")
    words = [unshare, "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return bool(unshare) and subprocess.run(words, capture_output=True).returncode == 0


SMALL = 'mkdir -p "$0" && mount -t tmpfs -o size=16k none "$0" && exec "$@"'


@pytest.mark.wide
@pytest.mark.skipif(not can_mount(), reason="this machine lets nobody mount a small disk")
def test_r6_a_full_disk_costs_the_checkpoints_and_not_the_run(job, tmp_path, calm):
    words = [*runs.layout("2x2"), *EVERY, *settings("workers.kind=threads")]
    words += settings("checkpoint.at_end=false")
    command = runs.command(*runs.arguments(job, tmp_path / "run", *words, **NUMBERS))
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SMALL, str(tmp_path / "run" / "checkpoints"), *command],
        capture_output=True,
        text=True,
        env=runs.environment(),
        timeout=runs.LIMIT_S,
    )
    run = runs.Outcome(tmp_path / "run", done.returncode, done.stdout, done.stderr)
    assert runs.finished(run).sha256 == calm.sha256
    assert run.summary["checkpoints_failed"][0]["reason"] == FULL
    lines = run.stdout.splitlines()
    [end] = [at for at, line in enumerate(lines) if line.startswith("finished 12 steps")]
    assert f"{FULL}); there is none yet" in runs.unfolded(lines[end + 1 :])[0]


# --- replicas ---


@pytest.mark.parametrize("what", first(1, ["parameter", "buffer", "optimizer"]))
def test_r7_one_flipped_bit_of_one_replica_ends_the_run(monkeypatch, job, tmp_path, what):
    save, flipped = EpochSaves.save, []

    def flip(self, version, **more):
        if str(self.stage.me) == "1.1" and version == 4:
            tensors = self.stage.state.live_tensors()
            wanted = {"parameter": "linear.weight", "buffer": "running_var", "optimizer": "exp_avg"}
            key = next(key for key in tensors if key.endswith(wanted[what]))
            tensors[key].view(torch.int32).view(-1)[0] ^= 1
            flipped.append(int(key.partition(".")[0]))
        save(self, version, **more)

    monkeypatch.setattr(EpochSaves, "save", flip)
    cut = settings("parallel.cut=[3]")
    run = runs.threads(job, tmp_path / "run", *runs.layout("2x2"), *cut, *EVERY, **NUMBERS)
    assert run.exit_code == 1
    [layer] = flipped
    [line] = run.stderr.splitlines()
    expected = f"after step 4 layer {layer} of stage 1 differs between workers 0.1 and 1.1"
    assert expected in line
    assert "it was not saved" in line
    assert f"holdfast train --resume {run.run_dir}" in line
    assert saved_steps(run) == [1]


# --- the first one ---


def test_a_stage_that_is_lost_early_never_means_the_initial_parameters(job, tmp_path):
    words = [*runs.layout("1x2"), "--fault", "kill 0.1 @ 6"]
    run = runs.finished(runs.threads(job, tmp_path / "run", *words, **NUMBERS))
    [back] = [event for event in run.events if isinstance(event, WentBack)]
    assert (back.to_step, back.checkpoint.endswith("step-00000001")) == (1, True)
    calm = runs.finished(runs.threads(job, tmp_path / "calm", *runs.layout("1x2"), **NUMBERS))
    assert run.sha256 == calm.sha256
