"""Private directories of a machine: removed by the last who uses them, or by the next who comes."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from holdfast.storage.scratch import Scratch, clear_left, scratch_base

NAME = "holdfast-0123456789abcdef"
HOLDS = """
import sys, time
from pathlib import Path
from holdfast.storage.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.hold() / "log").write_text("all")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that uses it."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path / NAME)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_who_is_the_last_to_use_it_removes_it(tmp_path):
    first, second = Scratch(tmp_path / NAME), Scratch(tmp_path / NAME)
    assert first.hold() == second.hold() == tmp_path / NAME
    first.remove()
    assert (tmp_path / NAME).is_dir()
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_one_that_was_removed_is_made_anew(tmp_path):
    scratch = Scratch(tmp_path / NAME)
    scratch.hold()
    other = Scratch(tmp_path / NAME)
    scratch.remove()
    assert not (tmp_path / NAME).exists()
    assert other.hold().is_dir()
    assert (scratch.hold().stat().st_mode & 0o777) == 0o700


def test_what_one_that_lives_uses_stays_and_what_one_that_was_killed_has_left_goes(tmp_path, other):
    clear_left(tmp_path)
    assert (tmp_path / NAME / "log").read_text() == "all"
    other.kill()
    other.wait()
    clear_left(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_touched(tmp_path):
    outside = tmp_path / "outside"
    Scratch(outside).hold()
    linked = tmp_path / "holdfast-aaaaaaaaaaaaaaaa"
    linked.symlink_to(outside)
    unlocked = tmp_path / "holdfast-bbbbbbbbbbbbbbbb"
    unlocked.mkdir(mode=0o700)
    for_others = tmp_path / "holdfast-cccccccccccccccc"
    for_others.mkdir()
    for_others.chmod(0o770)
    (for_others / ".lock").touch()
    before = sorted(tmp_path.rglob("*"))
    clear_left(tmp_path)
    clear_left(tmp_path / "missing")
    assert sorted(tmp_path.rglob("*")) == before


def test_one_whose_maker_was_killed_before_its_lock_is_removed_when_it_is_old(tmp_path):
    unlocked = tmp_path / NAME
    (unlocked / "1").mkdir(mode=0o700, parents=True)
    unlocked.chmod(0o700)
    clear_left(tmp_path)
    assert unlocked.is_dir()
    an_hour_ago_s = time.time() - 3700
    os.utime(unlocked, (an_hour_ago_s, an_hour_ago_s))
    clear_left(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_another_user_it_is_neither_used_nor_removed(tmp_path, monkeypatch):
    Scratch(tmp_path / NAME).hold()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match="is not a private directory of this user"):
        Scratch(tmp_path / NAME).hold()
    clear_left(tmp_path)
    assert (tmp_path / NAME).is_dir()


def test_a_link_in_its_place_is_refused(tmp_path):
    Scratch(tmp_path / "elsewhere").hold()
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        Scratch(tmp_path / NAME).hold()


def test_it_is_not_removed_while_it_is_being_removed(tmp_path):
    """By another process, which has the lock."""
    Scratch(tmp_path / NAME).hold()
    with open(tmp_path / NAME / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        clear_left(tmp_path)
    assert (tmp_path / NAME).is_dir()


def test_where_they_lie_is_told_by_the_environment(tmp_path):
    assert scratch_base({"HOLDFAST_CACHE": str(tmp_path)}) == tmp_path
    assert scratch_base({}).is_dir()
