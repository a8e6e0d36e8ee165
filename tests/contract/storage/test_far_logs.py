"""Logs of another machine: the same facts as on its disk, and no other file of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.file_door import Door, file_door
from helpers.harness.log_harness import (
    LIMIT_S,
    WORKER,
    LogIdentity,
    flip,
    has,
    log,
    offsets,
    read,
    segments,
    values,
    write,
    writer,
)
from holdfast.auth.handshake import WORKER_ROLE
from holdfast.errors import LogGap, TransferFailed
from holdfast.files.file_link import PIECE_BYTES
from holdfast.storage.log.far_logs import FarLogs
from holdfast.storage.log.log_shelf import LogShelf
from holdfast.storage.log.reader import LogReader
from holdfast.storage.log.segment import tidy_root
from holdfast.storage.log.sources import DiskLogs

HISTORY = "ab.0"  # of a run, as the wire has it
IDENTITY = LogIdentity(HISTORY, WORKER)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The logs of another machine."""
    return tmp_path / "there"


@pytest.fixture
def door(there: Path) -> Iterator[Door]:
    with file_door(LogShelf(lambda: {"log": there}).answer, WORKER_ROLE) as found:
        yield found


def reader(here: Path, *far: FarLogs) -> LogReader:
    return LogReader.open(here, "", HISTORY, [WORKER], far)


def far(door: Door, *more: Door) -> FarLogs:
    return FarLogs("10.0.0.2", [each.courier() for each in (door, *more)])


def test_what_another_machine_has_logged_is_read(door, there, tmp_path):
    write(there, range(3), identity=IDENTITY)
    with reader(tmp_path / "here", far(door)) as found:
        assert (found.ignored, found.damaged) == ([], [])
        for step in range(3):
            assert torch.equal(read(found, step), values(step))
        write(there, range(3, 5), identity=IDENTITY)  # it goes on
        assert torch.equal(read(found, 4), values(4))
    assert found.num_bytes > 0


def test_a_frame_of_many_pieces(door, there, tmp_path):
    numel = 3 * PIECE_BYTES // 4 + 7
    made = writer(there, identity=IDENTITY)
    log(made, 0, numel=numel)
    assert made.flush(LIMIT_S)
    made.close()
    with reader(tmp_path / "here", far(door)) as found:
        assert torch.equal(read(found, 0), values(0, numel=numel))


def test_this_machine_is_asked_first(door, there, tmp_path, monkeypatch):
    write(there, range(1), identity=IDENTITY)
    shutil.copytree(there, tmp_path / "here")
    with reader(tmp_path / "here", far(door)) as found:
        monkeypatch.setattr(FarLogs, "ask", None)
        assert torch.equal(read(found, 0), values(0))
        assert found.num_copies == 2


def test_a_bad_copy_here_is_passed_over_for_one_there(door, there, tmp_path):
    write(there, range(2), identity=IDENTITY)
    shutil.copytree(there, tmp_path / "here")
    [path] = segments(tmp_path / "here")
    flip(path, offsets(path)[1] - 20)
    with reader(tmp_path / "here", far(door)) as found:
        assert torch.equal(read(found, 0), values(0))
        assert "checksum differs" in found.damaged[0]


def test_a_bad_copy_there_is_a_gap(door, there, tmp_path):
    write(there, range(2), identity=IDENTITY)
    [path] = segments(there)
    flip(path, offsets(path)[1] - 20)
    with reader(tmp_path / "here", far(door)) as found:
        with pytest.raises(LogGap, match=r"segment 0 of machine 10\.0\.0\.2: checksum"):
            read(found, 0)
        assert torch.equal(read(found, 1), values(1))


def test_logs_of_another_history_are_not_taken(door, there, tmp_path):
    write(there, range(2), identity=LogIdentity("ab.1", WORKER))
    with reader(tmp_path / "here", far(door)) as found:
        assert not has(found, 0)
        assert "of run ab.1, not ab.0" in found.ignored[0]


def test_if_one_who_serves_is_gone_the_next_is_asked(door, there, tmp_path):
    write(there, range(2), identity=IDENTITY)
    with file_door(LogShelf(lambda: {"log": there}).answer, WORKER_ROLE) as first:
        source = far(first, door)
        found = reader(tmp_path / "here", source)
        assert torch.equal(read(found, 0), values(0))
    assert torch.equal(read(found, 1), values(1))  # in the middle, too
    found.__exit__()


def test_a_machine_on_which_nobody_is_left_is_named(tmp_path):
    found = reader(tmp_path / "here", FarLogs("10.0.0.2", []))
    with pytest.raises(LogGap) as caught:
        read(found, 0)
    assert "machine 10.0.0.2: no worker of the run is there" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_segment_that_is_trimmed_meanwhile_is_a_gap_and_nothing_worse(door, there, tmp_path):
    write(there, range(1), identity=IDENTITY)
    with reader(tmp_path / "here", far(door)) as found:
        segments(there)[0].unlink()
        with pytest.raises(LogGap, match="No such file"):
            read(found, 0)
        write(there, range(1), identity=IDENTITY)
        assert torch.equal(read(found, 0), values(0))


@pytest.mark.parametrize(
    "names",
    [
        {"do": "put"},
        {"do": "read", "root": "etc"},
        {"do": "read", "worker": "../0.1"},
        {"do": "read", "worker": "0.1/.."},
        {"do": "read", "number": -1},
        {"do": "read", "number": "1"},
        {"do": "read", "at": -5},
        {"do": "read", "size": 1 << 60},
        {"do": "scan", "start": -1, "run": HISTORY},
        {"do": "scan", "start": 0, "run": "../x"},
    ],
)
def test_names_and_numbers_that_are_none_are_refused(door, there, names):
    write(there, range(1), identity=IDENTITY)
    ask = {"root": "log", "worker": WORKER, "number": 0, "at": 0, "size": 4, **names}
    with pytest.raises(TransferFailed) as caught:
        far(door).ask(ask, 100)
    assert caught.value.refused


def lie(words: dict[str, object], body: bytes):
    def answer(ask, link) -> None:
        link.say(words)
        link.send_pieces([body])

    return answer


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ({"size": 5}, b"hello"),
        ({"size": 8}, b'[["a","../b",1]]'[:8]),
        ({"size": 15}, b'[["log","x",1]]'),
        ({"size": 1 << 50}, b"-"),
        ({"size": "5"}, b"-"),
        ({}, b"-"),
        ({"size": 4}, b"hello"),
    ],
)
def test_who_serves_nonsense_is_noted_and_not_believed(tmp_path, words, body):
    with file_door(lie(words, body), WORKER_ROLE) as door:
        found = reader(tmp_path / "here", far(door))
        assert found.num_facts == 0
        assert found.ignored[0].startswith("machine 10.0.0.2: ")


def test_what_is_needed_no_more_goes(there):
    for worker in ("0.1", "1.1"):
        write(there, range(2), identity=LogIdentity(HISTORY, worker))
        write(there, range(2, 4), identity=LogIdentity(HISTORY, worker))
        write(there, range(2), identity=LogIdentity("ab.7", worker))
    tidy_root(there, HISTORY, 2, ["1.1"])
    left = [sorted(path.name for path in (there / w).iterdir()) for w in ("0.1", "1.1")]
    assert left == [["segment-00000000.log", "segment-00000001.log"], ["segment-00000001.log"]]
    found = LogReader([DiskLogs(there)], HISTORY, [])
    assert has(found, 3)
