"""Damaged, cut off, missing and foreign logs: all that is sound is read, and the gap is named."""

import shutil
import struct

import pytest
import torch

from helpers.harness.log_harness import (
    RUN,
    WORKER,
    LogIdentity,
    flip,
    has,
    offsets,
    read,
    reader,
    segments,
    values,
    write,
)
from holdfast.errors import HoldfastError, LogGap
from holdfast.storage.log.frame import HEADER_BYTES, FrameKind
from holdfast.storage.log.segment import trim_folder


def assert_reads(found, steps) -> None:
    for step in steps:
        assert torch.equal(read(found, step), values(step))


def gap(found, step: int) -> LogGap:
    with pytest.raises(LogGap) as caught:
        read(found, step)
    assert "\n" not in str(caught.value)
    assert caught.value.step == step
    return caught.value


# --- cut off ---


def test_a_log_cut_off_anywhere_in_its_last_frame_has_all_frames_before_it(tmp_path):
    write(tmp_path, range(3))
    (path,) = segments(tmp_path)
    data, (*_, last, end) = path.read_bytes(), offsets(path)
    assert len(data) == end
    for length in range(last, end):
        path.write_bytes(data[:length])
        found = reader(tmp_path)
        assert (found.damaged, found.ignored) == ([], [])
        assert [has(found, step) for step in range(3)] == [True, True, False]
        assert_reads(found, range(2))
    assert "never logged" in str(gap(found, 2))


def test_a_segment_cut_off_in_its_own_header_is_left_out_and_the_others_are_read(tmp_path):
    write(tmp_path, range(1))
    write(tmp_path, range(1, 2))
    _, second = segments(tmp_path)
    data = second.read_bytes()
    for length in range(offsets(second)[0]):
        second.write_bytes(data[:length])
        found = reader(tmp_path)
        assert_reads(found, range(1))
        assert not has(found, 1)
        assert "cut off" in found.ignored[0]


def test_a_process_that_starts_again_goes_on_behind_a_log_that_was_cut_off(tmp_path):
    write(tmp_path, range(3))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    write(tmp_path, range(2, 5))
    found = reader(tmp_path)
    assert_reads(found, range(5))
    assert found.damaged == []


# --- changed ---


def test_a_changed_byte_anywhere_in_a_payload_is_named_and_all_else_is_read(tmp_path):
    write(tmp_path, range(3))
    (path,) = segments(tmp_path)
    data, (_, start, end, _) = path.read_bytes(), offsets(path)
    for offset in range(start + HEADER_BYTES, end):
        path.write_bytes(data)
        flip(path, offset)
        found = reader(tmp_path)
        assert_reads(found, (0, 2))
        assert has(found, 1)  # headers only were read
        text = str(gap(found, 1))
        assert "the log of step 2 has a gap" in text  # users count from one
        assert f"worker {WORKER}, {path.name}" in text
        assert f"checksum differs at byte {start}" in text
        assert "micro-batch 0, attempt 0, over boundary 0" in text


def test_a_changed_byte_anywhere_in_a_header_loses_that_frame_only(tmp_path):
    write(tmp_path, range(3))
    (path,) = segments(tmp_path)
    data, (_, start, *_) = path.read_bytes(), offsets(path)
    for offset in range(start, start + HEADER_BYTES):
        path.write_bytes(data)
        flip(path, offset)
        found = reader(tmp_path)
        assert_reads(found, (0, 2))
        assert not has(found, 1)
        assert f"{path.name} in {tmp_path}: damaged at byte {start}" in str(gap(found, 1))


def test_damage_larger_than_what_is_read_at_once_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.storage.log.segment.WINDOW_BYTES", 64)
    write(tmp_path, range(9))
    (path,) = segments(tmp_path)
    places = offsets(path)
    data = bytearray(path.read_bytes())
    damaged_bytes = places[6] - places[2]
    data[places[2] : places[6]] = (b"HFbl" * damaged_bytes)[:damaged_bytes]
    path.write_bytes(data)
    found = reader(tmp_path)
    assert [step for step in range(9) if has(found, step)] == [0, 1, 6, 7, 8]
    assert_reads(found, (0, 1, 6, 7, 8))
    assert len(found.damaged) == 1


def test_a_tail_of_zeros_is_damage_and_no_frame(tmp_path):
    write(tmp_path, range(2))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(5000))
    found = reader(tmp_path)
    assert_reads(found, range(2))
    assert len(found.damaged) == 1


# --- copies ---


@pytest.mark.parametrize("place", [0, HEADER_BYTES + 20], ids=["header", "payload"])
def test_the_mirror_heals_what_is_damaged(tmp_path, place):
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, range(3), there)
    (path,) = segments(here)
    assert path.read_bytes() == segments(there)[0].read_bytes()
    flip(path, offsets(path)[1] + place)
    assert_reads(reader(here, there), range(3))
    gap(reader(here), 1)


def test_the_mirror_is_enough_when_the_folder_is_gone(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, range(3), there)
    shutil.rmtree(here)
    assert_reads(reader(here, there), range(3))


def test_another_workers_copy_is_as_good(tmp_path):
    write(tmp_path, range(2))
    write(tmp_path, range(2), identity=LogIdentity(RUN, "1.1"))
    (path,) = segments(tmp_path)
    flip(path, offsets(path)[0] + HEADER_BYTES + 20)
    found = reader(tmp_path)
    assert_reads(found, range(2))
    assert "checksum differs" in found.damaged[0]


def test_all_bad_copies_are_named(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, range(1), there)
    for root in (here, there):
        flip(segments(root)[0], offsets(segments(root)[0])[0] + HEADER_BYTES + 20)
    text = str(gap(reader(here, there), 0))
    assert f"in {here}: checksum differs" in text
    assert f"in {there}: checksum differs" in text


def test_a_segment_that_is_gone_after_it_was_found_is_a_gap(tmp_path):
    write(tmp_path, range(1))
    found = reader(tmp_path)
    segments(tmp_path)[0].unlink()
    assert "No such file" in str(gap(found, 0))


# --- whose it is ---


def test_logs_of_another_run_are_left_out_with_the_reason(tmp_path):
    write(tmp_path, range(2), identity=LogIdentity("6", WORKER))
    write(tmp_path, range(1, 2))
    found = reader(tmp_path)
    assert [has(found, step) for step in range(2)] == [False, True]
    assert "of run 6, not 7" in found.ignored[0]
    assert "of run 6, not 7" in str(gap(found, 0))


def test_logs_of_another_format_are_left_out_with_the_reason(tmp_path):
    write(tmp_path, range(1))
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    path.write_bytes(data)
    found = reader(tmp_path)
    assert not has(found, 0)
    assert "format 99, expected 1" in found.ignored[0]


def test_files_that_are_no_segments_are_left_alone(tmp_path):
    write(tmp_path, range(1))
    (tmp_path / WORKER / "segment-notes.log").write_text("mine")
    (tmp_path / WORKER / "segment-00000009.log").write_text("no log, and longer than a header")
    (tmp_path / "README").write_text("mine")
    found = reader(tmp_path)
    assert_reads(found, range(1))
    assert len(found.ignored) == 1
    assert "no segment" in found.ignored[0]


def test_a_worker_whose_folder_is_gone_is_named(tmp_path):
    write(tmp_path, range(1))
    found = reader(tmp_path, workers=["0.0", WORKER])
    assert "no log of worker 0.0" in str(gap(found, 5))


def test_a_directory_without_logs_is_a_gap_and_no_crash(tmp_path):
    text = str(gap(reader(tmp_path / "nowhere"), 0))
    assert "nowhere" in text


def test_a_gap_is_an_error_of_ours_with_its_parts(tmp_path):
    write(tmp_path, range(1))
    with pytest.raises(
        HoldfastError, match="gradient of micro-batch 3, attempt 1, over boundary 1"
    ):
        reader(tmp_path).read(FrameKind.GRADIENT, 2, 0, 1, 3)
    with pytest.raises(LogGap, match="step 5 has a gap: verdict: never logged"):
        reader(tmp_path).verdict(4)
    with pytest.raises(LogGap, match="tied parameter 2"):
        reader(tmp_path).tied(2, 4, 0)


# --- while it is written ---


def test_what_is_written_later_is_found_when_it_is_asked_for(tmp_path):
    write(tmp_path, range(1))
    found = reader(tmp_path)
    write(tmp_path, range(1, 2))
    assert not has(found, 1)
    assert_reads(found, range(2))


def test_the_rest_of_a_frame_may_come_later(tmp_path):
    write(tmp_path, range(3))
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: offsets(path)[1] + HEADER_BYTES + 3])
    found = reader(tmp_path)
    assert [has(found, step) for step in range(3)] == [True, False, False]
    path.write_bytes(data)
    assert_reads(found, range(3))
    found.refresh()
    assert found.num_copies == found.num_facts == 3  # nothing is taken in twice


def test_bytes_read_are_counted(tmp_path):
    write(tmp_path, range(2))
    found = reader(tmp_path)
    assert found.num_bytes == 0
    read(found, 0)
    start, end, _ = offsets(segments(tmp_path)[0])
    assert found.num_bytes == end - start


# --- of workers that are gone ---


def test_the_log_of_a_worker_that_is_gone_can_be_trimmed_by_others(tmp_path):
    write(tmp_path, range(3))
    write(tmp_path, range(3, 5))
    write(tmp_path, range(3), identity=LogIdentity("6", WORKER))
    old, new, foreign = segments(tmp_path)
    size = old.stat().st_size
    assert trim_folder(tmp_path / WORKER, RUN, 2) == 0
    assert trim_folder(tmp_path / WORKER, RUN, 3) == size
    assert segments(tmp_path) == [new, foreign]
    assert trim_folder(tmp_path / "9.9", RUN, 3) == 0
