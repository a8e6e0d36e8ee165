"""The events of a long run: bounded on disk, and every reader sees what is left of them."""

import fcntl
import os

import pytest

from helpers.live import wait_until
from helpers.sample_events import sample
from helpers.scarce import refuse_threads
from holdfast.errors import ConfigError
from holdfast.observability.events import StepFinished, Warned, WorkerStep, encode_event
from holdfast.observability.log import EventWriter, read_events
from holdfast.observability.log.files import BULK, EVENTS_FILE, NUM_WHOLE, EventFile, event_files
from holdfast.observability.log.rotation import Rotation, shrink, shrink_all
from holdfast.observability.log.tail import Tail

NUM_STEPS = 400
LIMIT_S = 60.0


@pytest.fixture
def written(tmp_path):
    """A run of many steps with a limit of 40 kB; the bulk goes at once, not in a thread."""
    rotation = Rotation(tmp_path, 40_000, aside=False)
    sink = EventWriter(rotation.open(), rotation, patience_s=LIMIT_S)
    for step in range(NUM_STEPS):
        ops = tuple((f"0F{number}", step + 0.1, step + 0.2) for number in range(20))
        sink.emit(WorkerStep(at_s=float(step), worker="0.0", step=step, ops=ops))
        sink.emit(
            StepFinished(
                at_s=float(step),
                step=step,
                loss=1.0,
                gradient_norm=1.0,
                tokens=4,
                took_s=0.1,
                skipped=False,
            )
        )
    assert sink.num_dropped == 0
    yield sink
    sink.close()


def test_r9_times_of_operations_are_bounded_and_nothing_else_is_lost(tmp_path, written) -> None:
    events = read_events(tmp_path / EVENTS_FILE)
    finished = [event.step for event in events if isinstance(event, StepFinished)]
    assert finished == list(range(NUM_STEPS))
    steps = [event.step for event in events if isinstance(event, WorkerStep)]
    assert steps == list(range(steps[0], NUM_STEPS))  # the newest
    assert 0 < steps[0] < NUM_STEPS - 20
    files = event_files(tmp_path / EVENTS_FILE)
    tail = Tail(tmp_path / EVENTS_FILE)
    bulk = [line.text for line in tail.lines() if line.text.startswith(BULK)]
    tail.close()
    assert sum(map(len, bulk)) <= 41_000
    assert len(files) > NUM_WHOLE + 1


def test_the_newest_file_is_locked_at_any_moment(tmp_path, written) -> None:
    with (tmp_path / EVENTS_FILE).open("ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_resumed_run_goes_on_where_the_first_ended(tmp_path, written) -> None:
    before = [each.path.name for each in event_files(tmp_path / EVENTS_FILE)]
    written.close()
    rotation = Rotation(tmp_path, 40_000)
    rotation.open().close()
    rotation.next().close()
    names = [each.path.name for each in event_files(tmp_path / EVENTS_FILE)]
    assert names == [*before[:-1], f"events-{len(before)}.jsonl", EVENTS_FILE]


def test_without_a_limit_there_is_one_file(tmp_path) -> None:
    rotation = Rotation(tmp_path, None)
    sink = EventWriter(rotation.open(), rotation, patience_s=LIMIT_S)
    for step in range(1000):
        sink.emit(WorkerStep(at_s=0.0, worker="0.0", step=step, ops=()))
    sink.close()
    assert event_files(tmp_path / EVENTS_FILE) == [EventFile(1, tmp_path / EVENTS_FILE)]


def test_a_disk_that_refuses_a_new_file_keeps_the_old_one(tmp_path, monkeypatch) -> None:
    rotation = Rotation(tmp_path, 4000)
    sink = EventWriter(rotation.open(), rotation, patience_s=LIMIT_S)
    monkeypatch.setattr(rotation, "next", lambda: (_ for _ in ()).throw(OSError("full")))
    for step in range(100):
        sink.emit(WorkerStep(at_s=0.0, worker="0.0", step=step, ops=()))
    sink.close()
    assert len(read_events(tmp_path / EVENTS_FILE)) == 100


def filled(folder, number, *, steps=range(1)):
    """An older file, as the writer leaves it."""
    lines = [encode_event(sample(WorkerStep, step=step)) for step in steps]
    lines += [encode_event(sample(Warned, reason=f"in file {number}"))]
    path = folder / f"events-{number}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def reasons(folder):
    return [event.reason for event in read_events(folder / EVENTS_FILE) if type(event) is Warned]


def test_without_a_thread_older_files_are_made_small_later(tmp_path, monkeypatch) -> None:
    refused = refuse_threads(monkeypatch, "compress events", 2)
    for number in range(1, NUM_WHOLE + 2):
        filled(tmp_path, number)
    rotation = Rotation(tmp_path, 4000)
    rotation.open().close()
    for _ in range(3):
        rotation.next().close()
    small = [tmp_path / f"events-{number}.jsonl.gz" for number in (1, 2, 3, 4)]
    wait_until(lambda: all(path.exists() for path in small), "all to be made small", LIMIT_S)
    assert len(refused) == 2
    assert reasons(tmp_path) == [f"in file {number}" for number in range(1, NUM_WHOLE + 2)]


def test_what_is_made_small_when_the_writer_dies_is_there_once(tmp_path) -> None:
    for number in range(1, NUM_WHOLE + 2):
        filled(tmp_path, number)
    (tmp_path / EVENTS_FILE).touch()
    before = (tmp_path / "events-1.jsonl").read_bytes()
    shrink_all(tmp_path / EVENTS_FILE)
    assert not (tmp_path / "events-1.jsonl").exists()
    (tmp_path / "events-1.jsonl").write_bytes(before)  # it died before this went
    assert reasons(tmp_path) == [f"in file {number}" for number in range(1, NUM_WHOLE + 2)]
    shrink_all(tmp_path / EVENTS_FILE)
    assert not (tmp_path / "events-1.jsonl").exists()


def test_a_disk_without_room_for_the_small_file_keeps_the_large_one(tmp_path, monkeypatch) -> None:
    path = filled(tmp_path, 1)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("full")))
    shrink(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_about_to_be_replaced_is_counted_once(tmp_path) -> None:
    newest = tmp_path / EVENTS_FILE
    filled(tmp_path, 1).rename(newest)
    os.link(newest, tmp_path / "events-1.jsonl")
    assert event_files(newest) == [EventFile(1, newest)]
    assert reasons(tmp_path) == ["in file 1"]


def test_a_small_file_that_is_damaged_is_named(tmp_path) -> None:
    shrink(filled(tmp_path, 1, steps=()))
    (tmp_path / EVENTS_FILE).touch()
    path = tmp_path / "events-1.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ConfigError, match=r"cannot read events from .*events-1\.jsonl\.gz: it is"):
        read_events(tmp_path / EVENTS_FILE)
