"""Logs that cannot be written, are not ours, or do not fit: one clear line, and nothing is lost."""

import json
import os
import shutil
import subprocess

import pytest

from helpers import jobs, runs
from helpers.runs import holdfast, settings
from helpers.sweeps import chaos_checks as checks
from helpers.sweeps.chaos import Arena, Layout
from helpers.sweeps.chaos_order import steps_wait_for_checkpoints
from helpers.wide import first

THREADS = settings("workers.kind=threads")
LOG = "recovery.log=boundary"
ONE = Layout("1x4", 4, "[1, 2, 3]", 0.55)


@pytest.fixture
def job(tmp_path):
    return jobs.small(tmp_path)


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "not yet there" / "run"


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    return Arena(tmp_path_factory.mktemp("disk"))


def files_below(folder):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def refuse(job, run_dir, *assignments, part):
    """One line, exit code 2, and all files are as before."""
    before = files_below(job.parent)
    words = ["train", str(job), "--run-dir", str(run_dir), "--stages", "2", "--steps", "2"]
    outcome = holdfast([*words, *THREADS, *settings(*assignments)], run_dir)
    assert outcome.exit_code == 2, outcome
    [line] = outcome.stderr.splitlines()
    assert line.startswith("holdfast: recovery.")
    assert part in line
    assert files_below(job.parent) == before


# --- settings that make no sense ---

BAD = {
    ("recovery.log_budget=nonsense", LOG): "recovery.log_budget=nonsense: write a size as",
    ("recovery.log_budget=0GB", LOG): "recovery.log_budget=0GB: must be above 0",
    ("recovery.log_budget=-1GB", LOG): "recovery.log_budget=-1GB: write a size as",
    ("recovery.log_budget=2", LOG): "recovery.log_budget=2: write a size as",
    ("recovery.log_budget=9999999TB", LOG): "must be above 0 and at most 1,000,000TB",
    ("recovery.log_budget=2GB",): "recovery.log_budget=2GB: needs recovery.log=boundary",
    ("recovery.log_mirror=m",): "recovery.log_mirror=m: needs recovery.log=boundary",
    ("recovery.mode=swift",): "recovery.mode=swift: needs recovery.log=boundary",
    ("recovery.mode=global", LOG): "recovery.log=boundary: mode global replays nothing",
    ("recovery.log=all",): "recovery.log=all: must be none or boundary",
    ("recovery.helpers=-2", LOG): "recovery.helpers=-2: must be -1 (all) or more",
}


@pytest.mark.parametrize("assignments", BAD, ids=" ".join)
def test_a_bad_setting_of_the_log_is_refused_by_its_name_and_value(job, run_dir, assignments):
    refuse(job, run_dir, *assignments, part=BAD[assignments])


# --- directories that cannot be used ---


@pytest.mark.parametrize("key", ["recovery.log_dir", "recovery.log_mirror"])
@pytest.mark.parametrize("place", ["/proc/no/such", "/proc", "FILE/log"])
def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_made(
    job, run_dir, key, place
):
    place = place.replace("FILE", str(job))
    refuse(job, run_dir, LOG, f"{key}={place}", part=f"{key}={place}: ")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_so_is_a_directory_of_somebody_else(job, run_dir, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    refuse(job, run_dir, LOG, f"recovery.log_dir={folder}", part="cannot be written")


@pytest.mark.parametrize("key", ["recovery.log_dir", "recovery.log_mirror"])
def test_a_file_is_no_directory_for_logs(job, run_dir, tmp_path, key):
    file = tmp_path / "file"
    file.write_text("mine")
    refuse(job, run_dir, LOG, f"{key}={file}", part=f"{key}={file}: is a file")


def test_a_directory_with_other_files_is_refused_and_left_alone(job, run_dir, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter 1").write_text("It was a dark and stormy night")
    refuse(job, run_dir, LOG, f"recovery.log_dir={folder}", part="holds files that are no log")


@pytest.mark.wide
def test_the_log_of_another_run_is_refused_and_left_alone(arena, job, run_dir, tmp_path):
    folder = tmp_path / "logs"
    faults = ["kill 0.2 @ 3.B1"]
    ended = arena.run(ONE, faults, LOG, f"recovery.log_dir={folder}", "workers.restarts=0")
    assert ended.outcome.exit_code == 1
    assert {"0.0", "0.1", "0.2", "0.3"} <= {path.name for path in folder.iterdir()}
    whose = f"holds the log of another run, {ended.outcome.run_dir.resolve()}"
    refuse(job, run_dir, LOG, f"recovery.log_dir={folder}", part=whose)


def test_a_mirror_of_the_log_in_the_same_place_is_refused(job, run_dir, tmp_path):
    both = [f"recovery.log_dir={tmp_path / 'logs'}", f"recovery.log_mirror={tmp_path / 'logs'}"]
    refuse(job, run_dir, LOG, *both, part="is the log itself")
    own = f"recovery.log_mirror={run_dir / 'log'}"
    refuse(job, run_dir, LOG, own, part="is the log itself")


PLACES = {"the run directory": "", "a directory above it": "..", "its checkpoints": "checkpoints"}


@pytest.mark.parametrize("key", ["recovery.log_dir", "recovery.log_mirror"])
@pytest.mark.parametrize("where", PLACES)
def test_logs_are_never_kept_where_clearing_them_would_clear_the_run(job, run_dir, key, where):
    place = run_dir / PLACES[where]
    refuse(job, run_dir, LOG, f"{key}={place}", part=f"{key}={place}: ")


@pytest.mark.parametrize("where", ["the mirror in the log", "the log in the mirror"])
def test_the_log_and_its_mirror_are_not_kept_in_each_other(job, run_dir, tmp_path, where):
    outer, inner = tmp_path / "logs", tmp_path / "logs" / "more"
    log_dir, mirror = (outer, inner) if where == "the mirror in the log" else (inner, outer)
    both = [f"recovery.log_dir={log_dir}", f"recovery.log_mirror={mirror}"]
    refuse(job, run_dir, LOG, *both, part="recovery.log_mirror=")


# --- directories of one's own ---


@pytest.mark.wide
def test_logs_elsewhere_and_their_mirror_are_gone_after_a_finished_run(arena, tmp_path):
    places = [tmp_path / "logs", tmp_path / "mirror"]
    where = [f"recovery.log_dir={places[0]}", f"recovery.log_mirror={places[1]}"]
    story = arena.run(ONE, ["kill 0.2 @ 4.B1"], LOG, *where)
    checks.assert_same(story, arena.undisturbed(ONE))
    assert story.outcome.summary["rebuilt"]
    assert not any(place.exists() for place in places)
    assert not {"log", "rebuilt"} & {path.name for path in story.outcome.run_dir.iterdir()}


def test_a_run_that_was_resumed_may_use_its_own_log_directory_again(arena, tmp_path, monkeypatch):
    where = (LOG, f"recovery.log_dir={tmp_path / 'logs'}", "checkpoint.every_steps=2")
    with monkeypatch.context() as patch:
        steps_wait_for_checkpoints(patch, every=2)
        ended = arena.run(ONE, ["kill 0.2 @ 4.B1"], *where, "workers.restarts=0")
    assert ended.outcome.exit_code == 1
    flags = ["--resume", str(ended.outcome.run_dir)]
    words = [*runs.layout("1x4"), *flags, *settings(*where, "checkpoint.at_end=false")]
    words += settings(f"parallel.cut={ONE.cut}")
    job, numbers = arena.folder / "tiny_1x4.py", {"steps": 5, "microbatches": 4}
    resumed = runs.finished(runs.threads(job, ended.outcome.run_dir, *words, **numbers))
    assert resumed.sha256 == arena.undisturbed(ONE).sha256
    assert not (tmp_path / "logs").exists()


# --- too little room ---


def test_a_budget_too_small_for_one_step_is_said_in_the_terminal_and_training_goes_on(arena):
    story = arena.run(ONE, ["kill 0.2 @ 4.B1"], LOG, "recovery.log_budget=100B")
    checks.assert_same(story, arena.undisturbed(ONE))
    told = [line for line in story.outcome.lines if "log_budget=100B" in line]
    assert len(told) == 1, story.outcome.stdout
    [back] = story.outcome.summary["went_back"]
    assert back["reason"].startswith("no boundary of the lost stage is logged")


def can_mount():
    unshare = shutil.which("unshare")
    words = [unshare, "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return bool(unshare) and subprocess.run(words, capture_output=True).returncode == 0


FULL = 'mount -t tmpfs -o size=64k none "$0" && exec "$@"'


@pytest.mark.wide
@pytest.mark.multiprocess
@pytest.mark.skipif(not can_mount(), reason="this machine lets nobody mount a small disk")
@pytest.mark.parametrize("mirrored", first(1, [True, False]))
def test_a_disk_that_is_full_stops_the_log_and_not_the_training(tmp_path, mirrored):
    disk = tmp_path / "disk"
    disk.mkdir()
    mirror = settings(f"recovery.log_mirror={tmp_path / 'mirror'}") if mirrored else []
    where = [*THREADS, *settings(LOG, f"recovery.log_dir={disk / 'log'}"), *mirror]
    words = [*runs.layout("1x4"), *where, "--fault", "kill 0.2 @ 15.B1"]
    job, numbers = jobs.mixed(tmp_path), {"steps": 16, "microbatches": 6}
    command = runs.command(*runs.arguments(job, tmp_path / "run", *words, **numbers))
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", FULL, str(disk), *command],
        capture_output=True,
        text=True,
        env=runs.environment(),
        timeout=runs.LIMIT_S,
    )
    run = runs.Outcome(tmp_path / "run", done.returncode, done.stdout, done.stderr)
    runs.finished(run)
    calm = runs.finished(runs.threads(job, tmp_path / "calm", *runs.layout("1x4"), **numbers))
    assert (run.sha256, run.losses) == (calm.sha256, calm.losses)
    reasons = json.dumps(run.summary["log_changes"])
    assert "No space left on device" in reasons
    assert bool(run.summary["rebuilt"]) == mirrored, reasons
    assert bool(run.summary["went_back"]) != mirrored, reasons
