"""Logs of another machine, copied as they grow: they are read when that machine is gone."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.file_door import Door, file_door
from helpers.harness.log_harness import (
    LIMIT_S,
    WORKER,
    LogIdentity,
    has,
    log,
    read,
    segments,
    values,
    write,
    writer,
)
from helpers.live import wait_until
from holdfast.auth.handshake import WORKER_ROLE
from holdfast.errors import TransferFailed
from holdfast.files.file_link import PIECE_BYTES
from holdfast.storage.home import Home
from holdfast.storage.log import copier as copier_module
from holdfast.storage.log.copier import LogCopier, MachineCopy
from holdfast.storage.log.far_logs import FarLogs
from holdfast.storage.log.log_shelf import LogShelf
from holdfast.storage.log.reader import LogReader
from holdfast.storage.places import Places

HISTORY = "ab.0"
IDENTITY = LogIdentity(HISTORY, WORKER)
MACHINE = "10.0.0.2"


def places(folder: Path) -> Places:
    return Places(str(folder), "", str(folder / "log"), "", home=Home(""))


@pytest.fixture
def there(tmp_path: Path) -> Places:
    """Of another machine."""
    return places(tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> Places:
    return places(tmp_path / "here")


@pytest.fixture
def door(there: Places) -> Iterator[Door]:
    with file_door(LogShelf(there.log_roots).answer, WORKER_ROLE) as found:
        yield found


def copy_of(door: Door, here: Places) -> MachineCopy:
    return MachineCopy(MACHINE, [door.courier()], lambda: here.log_copy(MACHINE))


def pull(copy: MachineCopy) -> int:
    return copy.pull(lambda: False)


def same(there: Places, here: Places) -> bool:
    ours, theirs = segments(here.log_copy(MACHINE)), segments(there.log_root())
    return [p.read_bytes() for p in ours] == [p.read_bytes() for p in theirs] != []


def test_a_copy_follows_what_is_appended(door, there, here):
    copy = copy_of(door, here)
    assert pull(copy) == 0  # there is nothing yet
    made = writer(there.log_root(), identity=IDENTITY)
    num_bytes = 0
    for step in range(4):
        log(made, step, numel=PIECE_BYTES // 2 + 1)  # more than a piece
        assert made.flush(LIMIT_S)
        num_bytes += pull(copy)
        assert same(there, here)
    made.close()
    assert num_bytes == sum(path.stat().st_size for path in segments(there.log_root()))
    write(there.log_root(), range(4, 6), identity=IDENTITY)  # in a segment of its own
    assert pull(copy) > 0
    assert same(there, here)
    assert pull(copy) == 0
    copy.close()


def test_whole_segments_are_not_asked_for_again(door, there, here, monkeypatch):
    for step in range(3):
        write(there.log_root(), range(step, step + 1), identity=IDENTITY)
    copy = copy_of(door, here)
    pull(copy)
    asked = []
    ask = FarLogs.ask
    monkeypatch.setattr(FarLogs, "ask", lambda s, a, m: asked.append(a) or ask(s, a, m))
    pull(copy)
    copy.close()
    assert [(a["do"], a.get("number")) for a in asked] == [("segments", None), ("read", 2)]


def test_a_replay_elsewhere_reads_the_copy_when_the_machine_is_gone(door, there, here, tmp_path):
    write(there.log_root(), range(3), identity=IDENTITY)
    copy = copy_of(door, here)
    pull(copy)
    copy.close()
    with file_door(LogShelf(here.log_roots).answer, WORKER_ROLE) as neighbour:
        gone, left = FarLogs(MACHINE, []), FarLogs("10.0.0.3", [neighbour.courier()])
        nothing = tmp_path / "nothing"
        with LogReader.open(nothing, "", HISTORY, [WORKER], [gone, left]) as found:
            for step in range(3):
                assert torch.equal(read(found, step), values(step))


def test_copies_are_not_copied_again(door, there, here, tmp_path):
    write(there.log_copy("10.0.0.9"), range(1), identity=IDENTITY)
    copy = copy_of(door, here)
    assert pull(copy) == 0
    copy.close()


def test_another_goes_on_where_a_copy_ends(door, there, here):
    write(there.log_root(), range(3), identity=IDENTITY)
    first = copy_of(door, here)
    pull(first)
    first.close()
    [path] = segments(here.log_copy(MACHINE))
    os.truncate(path, path.stat().st_size - 30)  # it died in the middle
    second = copy_of(door, here)
    assert pull(second) == 30
    second.close()
    assert same(there, here)


def test_what_is_trimmed_while_it_is_copied_is_copied_anew(door, there, here):
    made = writer(there.log_root(), identity=IDENTITY)
    log(made, 0, numel=PIECE_BYTES)  # some pieces
    assert made.flush(LIMIT_S)
    made.close()
    copy = copy_of(door, here)

    def trimmed() -> bool:
        for path in segments(here.log_copy(MACHINE)):
            path.unlink()
        return False

    with pytest.raises(OSError, match="trimmed meanwhile"):
        copy.pull(trimmed)
    pull(copy)
    copy.close()
    assert same(there, here)


def test_copies_are_trimmed_with_the_logs(here):
    copied = here.log_copy(MACHINE)
    write(copied, range(2), identity=IDENTITY)
    write(copied, range(2, 4), identity=IDENTITY)
    write(copied, range(9), identity=LogIdentity("ab.7", WORKER))
    write(here.log_root(), range(2), identity=IDENTITY)  # the same name: it lives here by now
    here.tidy_logs(HISTORY, 2, gone=[])
    assert [path.name for path in segments(copied)] == ["segment-00000001.log"]
    assert len(segments(here.log_root())) == 1  # its writer trims it
    assert has(LogReader.open(copied, "", HISTORY), 3)


def test_the_last_part_of_a_disk_is_left_free(door, there, here, monkeypatch):
    write(there.log_root(), range(1), identity=IDENTITY)
    monkeypatch.setattr(copier_module, "FREE_SHARE", 0)
    copy = copy_of(door, here)
    with pytest.raises(OSError, match="of the disk is free"):
        pull(copy)
    copy.close()
    assert segments(here.log_copy(MACHINE)) == []


@pytest.fixture
def copier() -> Iterator[tuple[LogCopier, list[str]]]:
    warnings: list[str] = []
    made = LogCopier(warnings.append, retry_s=0.05)
    yield made, warnings
    made.close()
    assert not [one for one in threading.enumerate() if one.name == "log-copier"]


def test_the_thread_follows_until_it_is_told_otherwise(door, there, here, copier):
    made, warnings = copier
    made.follow(copy_of(door, here))
    write(there.log_root(), range(2), identity=IDENTITY)
    wait_until(lambda: same(there, here), "a copy")
    made.follow(None)
    made.follow(copy_of(door, here))
    write(there.log_root(), range(2, 4), identity=IDENTITY)
    wait_until(lambda: same(there, here), "the rest of it")
    assert warnings == []


def test_a_machine_that_is_gone_is_told_once_and_tried_again(there, here, copier):
    made, warnings = copier
    write(there.log_root(), range(2), identity=IDENTITY)
    with file_door(LogShelf(there.log_roots).answer, WORKER_ROLE) as door:
        made.follow(copy_of(door, here))
        wait_until(lambda: same(there, here), "a copy")
    wait_until(lambda: warnings, "a warning")
    with pytest.raises(TransferFailed):
        pull(copy_of(door, here))
    assert len(warnings) == 1
    assert warnings[0].startswith(f"the logs of machine {MACHINE} are not copied: ")
    assert same(there, here)
