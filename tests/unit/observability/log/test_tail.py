"""Where the files change while they are read: nothing is told twice, and nothing is missed."""

from dataclasses import replace

import pytest

from helpers.sample_events import sample
from holdfast.observability.events import Warned, encode_event
from holdfast.observability.log import EVENTS_FILE, read_events, tail
from holdfast.observability.log.files import event_files, older_file
from holdfast.observability.log.rotation import shrink


def write(path, *words):
    events = [replace(sample(Warned), reason=word) for word in words]
    path.write_text("".join(f"{encode_event(event)}\n" for event in events))


def words_of(newest):
    return [event.reason for event in read_events(newest)]


@pytest.fixture
def newest(tmp_path):
    for number in (1, 2, 3):
        write(older_file(tmp_path, number), f"in {number}")
    write(tmp_path / EVENTS_FILE, "in 4")
    return tmp_path / EVENTS_FILE


def first_time(monkeypatch, act):
    """A listing of files is followed by this before anything is opened, once."""
    done = []

    def listed(path):
        files = event_files(path)
        if not done:
            done.append(True)
            files = act(files) or files
        return files

    monkeypatch.setattr(tail, "event_files", listed)
    return done


def test_a_file_that_is_not_listed_while_it_is_compressed_is_not_passed_over(newest, monkeypatch):
    lists = []

    def listed(path):
        lists.append(event_files(path))
        return [each for each in lists[-1] if len(lists) != 3 or each.number != 2]

    monkeypatch.setattr(tail, "event_files", listed)
    assert words_of(newest) == ["in 1", "in 2", "in 3", "in 4"]


def test_a_file_that_is_compressed_before_it_is_opened_is_found_again(newest, monkeypatch):
    done = first_time(monkeypatch, lambda files: shrink(files[0].path))
    assert words_of(newest) == ["in 1", "in 2", "in 3", "in 4"]
    assert done


def test_a_file_that_is_lost_for_good_does_not_hide_the_rest(newest):
    older_file(newest.parent, 2).unlink()
    assert words_of(newest) == ["in 1", "in 3", "in 4"]


def test_a_newest_file_that_is_replaced_before_it_is_opened_is_read_in_its_turn(
    tmp_path, monkeypatch
):
    newest = tmp_path / EVENTS_FILE
    write(newest, "in 1")

    def rotate(files):
        newest.rename(older_file(tmp_path, 1))
        write(newest, "in 2")

    done = first_time(monkeypatch, rotate)
    assert words_of(newest) == ["in 1", "in 2"]
    assert done


def test_a_file_that_begins_while_the_one_before_it_is_read_is_read_too(newest):
    source = tail.Tail(newest)
    found = []
    for line in source.lines():
        found.append(line.text)
        if len(found) == 4:
            newest.rename(older_file(newest.parent, 4))
            write(newest, "in 5")
    found += [line.text for line in source.lines()]
    source.close()
    assert len(found) == 5
    assert b"in 5" in found[-1]


def test_a_copy_in_the_place_of_the_newest_is_gone_on_with(newest):
    """Whoever stands by replaces its copy by a longer one."""
    source = tail.Tail(newest)
    assert len(list(source.lines())) == 4
    copy = newest.with_name("copy")
    write(copy, "in 4", "in 4 as well")
    copy.replace(newest)
    [line] = source.lines()
    source.close()
    assert b"as well" in line.text
