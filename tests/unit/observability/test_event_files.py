"""The events of a long run: bounded on disk, and every reader sees what is left of them."""

import fcntl

import pytest

from helpers.live import wait_until
from helpers.scarce import refuse_threads
from holdfast.observability import event_files
from holdfast.observability.event_files import EVENTS_FILE, Rotation, all_files
from holdfast.observability.events import JsonLines, StepFinished, WorkerStep, read_events

NUM_STEPS = 400


@pytest.fixture
def written(tmp_path):
    """A run of many steps with a limit of 40 kB; the bulk goes at once, not in a thread."""
    rotation = Rotation(tmp_path, 40_000, aside=False)
    sink = JsonLines(rotation.open(), rotation)
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
    files = all_files(tmp_path / EVENTS_FILE)
    lines = [line for one in files for line in one.read_bytes().splitlines()]
    bulk = [line for line in lines if b"WorkerStep" in line]
    assert sum(map(len, bulk)) <= 41_000
    assert len(files) > event_files.NUM_WHOLE + 1


def test_the_newest_file_is_locked_at_any_moment(tmp_path, written) -> None:
    with (tmp_path / EVENTS_FILE).open("ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_resumed_run_goes_on_where_the_first_ended(tmp_path, written) -> None:
    before = [path.name for path in all_files(tmp_path / EVENTS_FILE)]
    written.close()
    rotation = Rotation(tmp_path, 40_000)
    rotation.open().close()
    rotation.next().close()
    names = [path.name for path in all_files(tmp_path / EVENTS_FILE)]
    assert names == [*before[:-1], f"events-{len(before)}.jsonl", EVENTS_FILE]


def test_without_a_limit_there_is_one_file(tmp_path) -> None:
    rotation = Rotation(tmp_path, None)
    sink = JsonLines(rotation.open(), rotation)
    for step in range(1000):
        sink.emit(WorkerStep(at_s=0.0, worker="0.0", step=step, ops=()))
    sink.close()
    assert all_files(tmp_path / EVENTS_FILE) == [tmp_path / EVENTS_FILE]


def test_a_disk_that_refuses_a_new_file_keeps_the_old_one(tmp_path, monkeypatch) -> None:
    rotation = Rotation(tmp_path, 4000)
    sink = JsonLines(rotation.open(), rotation)
    monkeypatch.setattr(rotation, "next", lambda: (_ for _ in ()).throw(OSError("full")))
    for step in range(100):
        sink.emit(WorkerStep(at_s=0.0, worker="0.0", step=step, ops=()))
    sink.close()
    assert len(read_events(tmp_path / EVENTS_FILE)) == 100


def test_without_a_thread_an_older_file_loses_its_bulk_later(tmp_path, monkeypatch) -> None:
    refused = refuse_threads(monkeypatch, "compact events", 2)
    rotation = Rotation(tmp_path, 4000)
    sink = JsonLines(rotation.open(), rotation)
    older = [tmp_path / f"events-{number}.jsonl" for number in (1, 2, 3)]
    step = 0
    while not (tmp_path / f"events-{3 + event_files.NUM_WHOLE}.jsonl").exists():
        sink.emit(WorkerStep(at_s=0.0, worker="0.0", step=step, ops=()))
        step += 1
    sink.close()
    assert len(refused) == 2
    assert sink.num_dropped == 0
    wait_until(lambda: all(one.stat().st_size == 0 for one in older), "the bulk to go")
    steps = [event.step for event in read_events(tmp_path / EVENTS_FILE)]
    assert steps == list(range(steps[0], step))
