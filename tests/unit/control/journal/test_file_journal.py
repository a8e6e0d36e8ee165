"""A journal in a directory: what is in it after a crash at any byte, and who may write there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.auth.secret import last_generation, write_generation
from holdfast.control.journal.base import wait_for_leadership
from holdfast.control.journal.file_journal import JOURNAL_FILE, FileJournal
from holdfast.errors import Deposed, JournalAway, JournalDamaged, JournalError, JournalHeld

LIMIT_S = 30.0
FIRST, SECOND, THIRD = {"epoch": 1}, {"epoch": 2, "why": "ä\n\0"}, {"epoch": 3, "x": [None, 1.5]}


def claimed(folder: Path) -> FileJournal:
    journal = FileJournal(folder, "a test")
    journal.claim()
    return journal


def written(folder: Path, *appends: list[dict]) -> bytes:
    """The file after so many appends by one leader that has ended."""
    journal = claimed(folder)
    for records in appends:
        journal.append_all(records)
    journal.close()
    return (folder / JOURNAL_FILE).read_bytes()


def read(folder: Path) -> list[dict]:
    return FileJournal(folder, "a reader").records()


# --- records ---


def test_what_is_appended_is_read_by_the_next_leader_in_order(tmp_path):
    written(tmp_path, [FIRST], [SECOND, THIRD])
    journal = claimed(tmp_path)
    assert journal.records() == [FIRST, SECOND, THIRD]
    journal.append(FIRST)
    assert read(tmp_path) == [FIRST, SECOND, THIRD, FIRST]


def test_an_empty_directory_is_an_empty_journal(tmp_path):
    assert read(tmp_path) == []


CRASHES = {
    "cut off": lambda line, at: line[:at],
    "the end is zeros": lambda line, at: line[:at] + bytes(len(line) - at),
    "the beginning is zeros": lambda line, at: bytes(at + 1) + line[at + 1 :],
}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_a_crash_at_any_byte_of_an_append_leaves_what_was_there_before(tmp_path, crash):
    whole = written(tmp_path, [FIRST], [SECOND, THIRD])
    start = written_before_last(whole)
    for at in range(len(whole) - start):
        (tmp_path / JOURNAL_FILE).write_bytes(whole[:start] + crash(whole[start:], at))
        assert read(tmp_path) == [FIRST]
    (tmp_path / JOURNAL_FILE).write_bytes(whole[: start + 5])
    journal = claimed(tmp_path)
    journal.append(THIRD)
    assert read(tmp_path) == [FIRST, THIRD], "the half line is in the way"


def written_before_last(data: bytes) -> int:
    return data.rindex(b"\n", 0, len(data) - 1) + 1


def test_a_damaged_line_is_an_error_that_says_what_to_do_wherever_it_is(tmp_path):
    whole = written(tmp_path, [FIRST], [SECOND], [THIRD])
    for at in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (tmp_path / JOURNAL_FILE).write_bytes(damaged)
        with pytest.raises(JournalDamaged, match=r"line \d is damaged; restore the file from a ba"):
            read(tmp_path)
        with pytest.raises(JournalDamaged):
            FileJournal(tmp_path, "a test").claim()
        assert (tmp_path / JOURNAL_FILE).read_bytes() == damaged, "evidence is gone"


def test_what_is_no_json_is_refused_and_leaves_nothing(tmp_path):
    journal = claimed(tmp_path)
    for wrong in ({"loss": float("nan")}, {"path": tmp_path}):
        with pytest.raises(JournalError, match="is no JSON"):
            journal.append_all([FIRST, wrong])
    assert journal.records() == []


def test_a_snapshot_takes_the_place_of_all_before_it(tmp_path):
    journal = claimed(tmp_path)
    journal.append_all([FIRST, SECOND])
    journal.compact(THIRD)
    journal.append(FIRST)
    assert journal.records() == [THIRD, FIRST]
    journal.close()
    assert claimed(tmp_path).records() == [THIRD, FIRST]


def test_a_snapshot_that_was_not_finished_changes_nothing(tmp_path):
    written(tmp_path, [FIRST])
    (tmp_path / f".{JOURNAL_FILE}.part").write_bytes(b"half a snapsh")
    journal = claimed(tmp_path)
    journal.compact(SECOND)
    assert journal.records() == [SECOND]


def test_nobody_else_may_read_the_files(tmp_path):
    written(tmp_path, [FIRST])
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


# --- disks ---


class FailingDisk:
    """What ``os`` does to files, until it is told to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 40
        self.flushes, self.interrupts = True, False
        self._write, self._flush = os.write, os.fdatasync
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fdatasync", self.flush)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        if self.interrupts:
            self._write(descriptor, bytes(data)[:60])
            raise KeyboardInterrupt
        num = self._write(descriptor, bytes(data)[: self.room])
        self.room -= num
        return num

    def flush(self, descriptor: int) -> None:
        if not self.flushes:
            raise OSError(5, "Input/output error")
        self._flush(descriptor)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_full_disk_refuses_a_record_and_takes_it_when_there_is_room(tmp_path, monkeypatch, room):
    journal = claimed(tmp_path)
    journal.append(FIRST | {"text": "x" * 1000})
    disk = FailingDisk(monkeypatch)
    disk.room = room
    with pytest.raises(JournalAway, match="No space left"):
        journal.append(SECOND)
    assert journal.leads(time.monotonic())
    assert [record["epoch"] for record in read(tmp_path)] == [1]
    disk.room = 500  # for the record, not for all of them
    journal.append(THIRD)
    assert [record["epoch"] for record in read(tmp_path)] == [1, 3]


def test_a_snapshot_for_which_there_is_no_room_changes_nothing(tmp_path, monkeypatch):
    journal = claimed(tmp_path)
    journal.append(FIRST)
    disk = FailingDisk(monkeypatch)
    disk.room = 10
    with pytest.raises(JournalAway, match="No space left"):
        journal.compact(SECOND)
    disk.room = 1 << 40
    journal.append(THIRD)
    assert read(tmp_path) == [FIRST, THIRD]


def test_after_a_flush_that_failed_all_is_written_anew(tmp_path, monkeypatch):
    journal = claimed(tmp_path)
    journal.append(FIRST)
    before = (tmp_path / JOURNAL_FILE).stat().st_ino
    disk = FailingDisk(monkeypatch)
    disk.flushes = False
    with pytest.raises(JournalAway, match="Input/output error"):
        journal.append(SECOND)
    disk.flushes = True
    journal.append(THIRD)
    assert read(tmp_path) == [FIRST, THIRD], "what was refused is there though more came after it"
    assert (tmp_path / JOURNAL_FILE).stat().st_ino != before


def test_an_append_that_was_interrupted_leaves_no_half_line_in_the_way(tmp_path, monkeypatch):
    journal = claimed(tmp_path)
    journal.append(FIRST)
    disk = FailingDisk(monkeypatch)
    disk.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        journal.append(SECOND)
    assert b"epoch" in (tmp_path / JOURNAL_FILE).read_bytes().splitlines()[-1]
    disk.interrupts = False
    journal.append(THIRD)
    assert read(tmp_path) == [FIRST, THIRD]


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(JournalAway, match="No such file or directory"):
        FileJournal(tmp_path / "none", "a test").claim()


def test_who_claims_twice_leads_as_the_next_generation(tmp_path):
    journal = claimed(tmp_path)
    journal.append(FIRST)
    assert journal.claim().generation == 2
    journal.append(SECOND)
    assert read(tmp_path) == [FIRST, SECOND]


# --- who leads ---

LEADER = """
import sys
from pathlib import Path
from holdfast.control.journal.file_journal import FileJournal
journal = FileJournal(Path(sys.argv[1]), "a child")
print(journal.claim().generation, flush=True)
journal.append({"by": "the child"})
print("appended", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(tmp_path):
    """Leads until its standard input ends, or somebody kills it."""
    words = [sys.executable, "-c", LEADER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stdout.readline() == b"1\n"
        assert process.stdout.readline() == b"appended\n"
        yield process
        process.kill()


def test_a_second_claimant_is_refused_while_the_first_lives_even_if_it_is_stopped(tmp_path, child):
    os.kill(child.pid, signal.SIGSTOP)
    second = FileJournal(tmp_path, "the second")
    with pytest.raises(JournalHeld, match="launch 1, a child leads this run") as refused:
        second.claim()
    assert (refused.value.holder, refused.value.generation) == ("launch 1, a child", 1)
    assert wait_for_leadership(second, 0.0) is None
    with pytest.raises(Deposed):
        second.append(FIRST)
    assert not second.leads(time.monotonic())
    assert last_generation(tmp_path) == 1


def test_it_takes_over_when_the_first_is_killed(tmp_path, child):
    child.kill()
    second = FileJournal(tmp_path, "the second")
    claim = wait_for_leadership(second, LIMIT_S)
    assert claim is not None
    assert (claim.generation, claim.took_over_from) == (2, "launch 1, a child")
    assert second.records() == [{"by": "the child"}]


def test_of_many_claimants_at_once_one_leads(tmp_path):
    code = LEADER.replace('journal.append({"by": "the child"})', "")
    words = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    some = [subprocess.Popen(words, **pipes) for _ in range(4)]
    said = sorted(process.stdout.readline() for process in some)
    for process in some:
        process.communicate()
    assert said == [b"", b"", b"", b"1\n"]


def test_who_gives_up_in_good_order_is_followed_at_once(tmp_path):
    first, second = claimed(tmp_path), FileJournal(tmp_path, "the second")
    first.close()
    claim = second.claim(above=6)
    assert (claim.generation, claim.took_over_from) == (7, "")
    with pytest.raises(Deposed):
        first.append(FIRST)
    first.close()
    assert second.leads(time.monotonic())


def test_without_locks_the_newest_generation_counts(tmp_path):
    old = claimed(tmp_path)
    old.append(FIRST)
    lines = (tmp_path / JOURNAL_FILE).read_bytes()
    (tmp_path / "journal.lock").unlink()  # as on a file system where locks do not hold
    new = FileJournal(tmp_path, "the second")
    assert new.claim().generation == 2
    with pytest.raises(Deposed, match="launch 2 leads the run, and this is 1"):
        old.append(SECOND)
    assert not old.leads(time.monotonic())
    late = lines[written_before_last(lines) :]  # it had asked for its generation just before
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(late)
    assert new.records() == [FIRST]


@pytest.mark.parametrize("lost", [JOURNAL_FILE, "generation"])
def test_a_journal_that_was_removed_is_not_written_on(tmp_path, lost):
    journal = claimed(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(JournalDamaged, match="was removed or replaced"):
        journal.append(FIRST)
    assert not journal.leads(time.monotonic())


def test_the_generation_of_the_run_directory_is_gone_on_from(tmp_path):
    write_generation(tmp_path, 4)
    assert FileJournal(tmp_path, "a test").claim().generation == 5
    assert last_generation(tmp_path) == 5
