"""A run's log as readers see it: the same with an index and without, whatever happened to it."""

import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from helpers.live import wait_until
from helpers.sample_events import EVENTS, sample
from holdfast.errors import ConfigError
from holdfast.observability.events import (
    RunStarted,
    StepFinished,
    TookOver,
    Warned,
    WentBack,
    WorkerStep,
    encode_event,
)
from holdfast.observability.log import EVENTS_FILE, EventWriter, RunLog, read_events
from holdfast.observability.log.files import NUM_WHOLE, event_files, older_file
from holdfast.observability.log.rotation import shrink_all
from synthetic_run import make_index, make_run

LIMIT_S = 60.0
STEP = sample(StepFinished)


def lines_of(events):
    return "".join(f"{encode_event(event)}\n" for event in events)


def put(path, events):
    path.write_text(lines_of(events))


def columns(table):
    return [getattr(table, name).tolist() for name in ("step", "at_s", "loss", "lr", "flags")]


def check(log, run_dir):
    """It tells what the files tell."""
    every = read_events(run_dir / EVENTS_FILE)
    rare = [event for event in every if not isinstance(event, StepFinished | WorkerStep)]
    steps = [event for event in every if isinstance(event, StepFinished)]
    assert list(log.rare) == rare
    assert [log.steps.event(row) for row in range(len(log.steps))] == steps


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """400 steps of 4 workers in many files, the oldest of them small."""
    run_dir = make_run(tmp_path_factory.mktemp("made") / "run", 400, 4, limit_bytes=400_000)
    names = [each.path.name for each in event_files(run_dir / EVENTS_FILE)]
    assert names[0] == "events-1.jsonl.gz"
    assert not names[-1 - NUM_WHOLE].endswith(".gz")
    return run_dir


@pytest.fixture
def run_dir(tmp_path, made):
    return shutil.copytree(made, tmp_path / "run")


def test_a_run_is_told_whole_with_its_index(run_dir):
    log = RunLog.open(run_dir)
    check(log, run_dir)
    assert log.steps.step.tolist() == list(range(400))
    assert not log.is_running


def test_with_the_index_nothing_is_read_that_it_has(run_dir):
    for each in event_files(run_dir / EVENTS_FILE)[1:-1]:
        each.path.write_bytes(b"")  # else their lines would be missed
    assert len(RunLog.open(run_dir).steps) == 400


def remove(index):
    shutil.rmtree(index)


def empty(index):
    (index / "steps.bin").write_bytes(b"")


def tear_rows(index):
    os.truncate(index / "steps.bin", (index / "steps.bin").stat().st_size - 150)


def tear_rare(index):
    os.truncate(index / "rare.jsonl", (index / "rare.jsonl").stat().st_size - 150)


def lose_rare(index):
    (index / "rare.jsonl").unlink()


def zero_rows(index):
    """As after a machine that died: the size is there, what was written is not."""
    data = bytearray((index / "steps.bin").read_bytes())
    data[20_000:24_000] = bytes(4_000)
    (index / "steps.bin").write_bytes(data)


def flip_a_loss(index):
    data = bytearray((index / "steps.bin").read_bytes())
    data[100 * 200 + 30] ^= 1
    (index / "steps.bin").write_bytes(data)


def change_rare(index):
    text = (index / "rare.jsonl").read_text()
    (index / "rare.jsonl").write_text(text.replace("SIGKILL", "SIGTERM"))


def of_another_form(index):
    data = bytearray((index / "steps.bin").read_bytes())
    data[8] += 1
    (index / "steps.bin").write_bytes(data)


def of_another_run(index):
    remove(index)
    other = make_run(index.parent / "other", 50, 2)
    shutil.copytree(other / "index", index)


def a_file_in_its_place(index):
    remove(index)
    index.write_text("")


@pytest.mark.parametrize(
    "spoil",
    [
        remove,
        empty,
        tear_rows,
        tear_rare,
        lose_rare,
        zero_rows,
        flip_a_loss,
        change_rare,
        of_another_form,
        of_another_run,
        a_file_in_its_place,
    ],
)
def test_an_index_that_is_not_sound_is_not_believed(run_dir, spoil):
    spoil(run_dir / "index")
    check(RunLog.open(run_dir), run_dir)


@pytest.mark.parametrize("spoil", [remove, zero_rows, change_rare, of_another_run])
def test_whoever_writes_the_index_next_makes_it_whole(run_dir, spoil):
    before = {path.name: path.read_bytes() for path in (run_dir / "index").iterdir()}
    spoil(run_dir / "index")
    make_index(run_dir / EVENTS_FILE)
    assert {path.name: path.read_bytes() for path in (run_dir / "index").iterdir()} == before


def test_an_index_of_events_that_were_replaced_is_not_believed(run_dir):
    """The same beginning, another end: a copy of the run that was resumed elsewhere."""
    newest = run_dir / EVENTS_FILE
    lines = newest.read_text().splitlines(keepends=True)
    newest.write_text("".join([*lines[: len(lines) // 2], lines_of([replace(STEP, step=7)])]))
    check(RunLog.open(run_dir), run_dir)


def test_what_was_written_since_is_read_from_the_files(run_dir):
    newest = run_dir / EVENTS_FILE
    with newest.open("a") as file:
        file.write(lines_of([sample(Warned), replace(STEP, step=400)]))
    newest.rename(older_file(run_dir, event_files(newest)[-1].number))
    put(newest, [sample(WentBack), replace(STEP, step=399)])
    shrink_all(newest)
    log = RunLog.open(run_dir)
    check(log, run_dir)
    assert log.steps.step.tolist()[-3:] == [399, 400, 399]


def test_what_was_written_since_into_a_file_that_is_small_now_is_read_too(run_dir):
    """The place in the file has changed: its lines are counted."""
    newest = run_dir / EVENTS_FILE
    with newest.open("a") as file:
        file.write(lines_of([sample(WorkerStep), sample(Warned), replace(STEP, step=400)]))
    for step in range(401, 402 + NUM_WHOLE):
        newest.rename(older_file(run_dir, event_files(newest)[-1].number))
        put(newest, [replace(STEP, step=step)])
    shrink_all(newest)
    assert event_files(newest)[-2 - NUM_WHOLE].is_compressed
    log = RunLog.open(run_dir)
    check(log, run_dir)
    assert log.steps.step.tolist() == list(range(402 + NUM_WHOLE))


@pytest.mark.parametrize("indexed", [True, False])
def test_operations_of_steps_are_found_in_the_files_that_still_have_them(run_dir, indexed):
    if not indexed:
        remove(run_dir / "index")
    kept = [e for e in read_events(run_dir / EVENTS_FILE) if isinstance(e, WorkerStep)]
    first = kept[0].step
    assert 0 < first < 350
    log = RunLog.open(run_dir)
    for begin, end in [(0, 399), (first, first), (350, 352), (399, 1000), (0, first - 1), (9, 8)]:
        wanted = [event for event in kept if begin <= event.step <= end]
        assert log.operations(begin, end) == wanted


def test_operations_of_steps_that_came_later_are_found_too(tmp_path):
    newest = tmp_path / EVENTS_FILE
    work = sample(WorkerStep)
    put(newest, [sample(RunStarted), replace(work, step=0), replace(STEP, step=0)])
    log = RunLog.open(tmp_path)
    with newest.open("a") as file:  # the last one after its step
        more = [replace(work, step=1), replace(STEP, step=1), replace(work, step=1, worker="1.1")]
        file.write(lines_of(more))
    assert log.operations(1, 1) == [more[0], more[2]]
    newest.rename(older_file(tmp_path, 1))
    put(newest, [replace(work, step=2), replace(work, step=1, worker="0.1")])
    assert [event.worker for event in log.operations(1, 1)] == [work.worker, "1.1", "0.1"]
    assert [event.step for event in log.operations(0, 9)] == [0, 1, 1, 2, 1]


def test_the_launch_of_a_step_is_counted_over_resumes_and_takeovers(tmp_path):
    again = replace(sample(RunStarted), at_s=99.0)
    put(
        tmp_path / EVENTS_FILE,
        [sample(RunStarted), STEP, again, STEP, STEP, sample(TookOver), STEP],
    )
    log = RunLog.open(tmp_path)
    assert log.steps.launch.tolist() == [1, 2, 2, 3]
    assert log.steps.rare_before.tolist() == [1, 2, 2, 3]
    make_index(tmp_path / EVENTS_FILE)
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write(lines_of([STEP]))
    assert RunLog.open(tmp_path).steps.launch.tolist() == [1, 2, 2, 3, 3]


def test_a_long_log_without_an_index_is_given_one_and_tells_how_far_it_is(tmp_path):
    make_run(tmp_path, 45_000, 1, operations=False, indexed=False)
    heard = []
    log = RunLog.open(tmp_path, on_progress=heard.append)
    assert heard == sorted(heard)
    assert len(heard) == 2
    assert 0.4 < heard[0] < heard[1] < 1.0
    assert (tmp_path / "index" / "steps.bin").stat().st_size > 45_000
    again = RunLog.open(tmp_path, on_progress=heard.append)
    assert len(heard) == 2
    assert columns(again.steps) == columns(log.steps)
    assert np.array_equal(again.steps.rare_before, log.steps.rare_before)


def test_where_nothing_can_be_written_a_long_log_is_read_all_the_same(tmp_path):
    make_run(tmp_path, 11_000, 1, operations=False, indexed=False)
    (tmp_path / "index").write_text("")
    assert len(RunLog.open(tmp_path).steps) == 11_000


def test_every_kind_of_event_comes_back(tmp_path):
    put(tmp_path / EVENTS_FILE, EVENTS)
    check(RunLog.open(tmp_path), tmp_path)
    make_index(tmp_path / EVENTS_FILE)
    check(RunLog.open(tmp_path), tmp_path)


def test_a_run_that_has_just_begun_has_no_steps(tmp_path):
    (tmp_path / EVENTS_FILE).touch()
    log = RunLog.open(tmp_path)
    assert (log.rare, len(log.steps), log.operations(0, 9)) == ((), 0, [])


def test_what_is_no_run_is_told_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"run: no such directory; expected the directory of a"):
        RunLog.open(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds no events\.jsonl: expected the directory of a"):
        RunLog.open(tmp_path)


@pytest.mark.parametrize("text", ["hello", "hello\n", "[1, 2]\n", '{"event": "Party"}\n', "\xff"])
def test_a_foreign_file_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / EVENTS_FILE).write_bytes((lines_of([STEP]) + text).encode("latin-1"))
    with pytest.raises(ConfigError, match=r"events\.jsonl"):
        RunLog.open(tmp_path)


def test_a_half_written_end_is_left_out(tmp_path):
    text = lines_of([sample(RunStarted), STEP])
    (tmp_path / EVENTS_FILE).write_text(text + text[:40])
    log = RunLog.open(tmp_path)
    assert (len(log.rare), len(log.steps)) == (1, 1)


# --- as it goes on ---


def heard(log, number):
    """So many events that come after it was opened."""
    events = []
    following = log.follow(poll_s=0.01)
    for event in following:
        if event is not None:
            events.append(event)
        if len(events) == number:
            following.close()
    return events


def test_following_begins_where_opening_ended(tmp_path):
    newest = tmp_path / EVENTS_FILE
    put(newest, EVENTS[:5])
    log = RunLog.open(tmp_path)
    with newest.open("a") as file:
        file.write(lines_of(EVENTS[5:9]))
    assert heard(log, 4) == EVENTS[5:9]
    assert heard(log, 4) == EVENTS[5:9]  # each has its own place


def test_who_follows_hears_none_while_nothing_comes(tmp_path):
    put(tmp_path / EVENTS_FILE, EVENTS[:1])
    following = RunLog.open(tmp_path).follow(poll_s=0.01)
    assert [next(following), next(following)] == [None, None]
    following.close()


def test_half_a_line_is_waited_for(tmp_path):
    newest = tmp_path / EVENTS_FILE
    put(newest, EVENTS[:1])
    following = RunLog.open(tmp_path).follow(poll_s=0.01)
    text = lines_of([EVENTS[1]])
    with newest.open("a") as file:
        file.write(text[:30])
    assert next(following) is None
    with newest.open("a") as file:
        file.write(text[30:])
    assert next(following) == EVENTS[1]
    following.close()


def test_following_survives_new_files_small_files_and_the_writers_death(tmp_path):
    """Every event that is no time of operations is heard once, and in order."""
    log, num_steps = None, 300
    writers = []

    def write(first):
        writer = EventWriter.of_run(tmp_path, 8_000)
        for step in range(first, first + num_steps):
            writer.emit(replace(sample(WorkerStep), step=step))
            writer.emit(replace(STEP, step=step))
        writers.append(writer)

    with (tmp_path / EVENTS_FILE).open("w") as file:
        file.write(lines_of([sample(RunStarted)]))
    log = RunLog.open(tmp_path)
    found = []
    following = log.follow(poll_s=0.001)
    for first in (0, num_steps):
        thread = threading.Thread(target=write, args=(first,))
        thread.start()
        for event in following:
            found += [event.step] if isinstance(event, StepFinished) else []
            if found and found[-1] == first + num_steps - 1:
                break
        thread.join()
        writers[-1].close()
        with (tmp_path / EVENTS_FILE).open("a") as file:
            file.write('{"event": "StepFin')  # it died
    following.close()
    assert found == list(range(2 * num_steps))
    assert event_files(tmp_path / EVENTS_FILE)[0].is_compressed
    check(RunLog.open(tmp_path), tmp_path)


def test_the_index_is_whole_when_the_writer_has_closed(tmp_path):
    writer = EventWriter.of_run(tmp_path, 20_000)
    assert RunLog.open(tmp_path).is_running
    for step in range(100):
        writer.emit(replace(sample(WorkerStep), step=step))
        writer.emit(replace(STEP, step=step))
    writer.close()
    assert not RunLog.open(tmp_path).is_running
    for each in event_files(tmp_path / EVENTS_FILE)[1:-1]:
        each.path.write_bytes(b"")
    assert RunLog.open(tmp_path).steps.step.tolist() == list(range(100))


def test_the_index_grows_while_the_run_writes(tmp_path):
    writer = EventWriter.of_run(tmp_path, None)
    writer.emit(STEP)
    steps = tmp_path / "index" / "steps.bin"
    wait_until(lambda: steps.exists() and steps.stat().st_size >= 200, "the index", LIMIT_S)
    writer.emit(replace(STEP, step=1))
    wait_until(lambda: steps.stat().st_size >= 300, "the index to grow", LIMIT_S)
    writer.close()
