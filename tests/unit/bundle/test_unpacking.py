"""A bundle on disk: whole and verified, or not there at all."""

import errno
import hashlib
import multiprocessing
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.bundle.manifest import BundledFile, BundleManifest, manifest_of
from holdfast.bundle.unpacking import (
    FilePiece,
    Unpacking,
    cached,
    default_cache,
    expected_pieces,
    import_folders,
    is_whole,
    unpack,
)
from holdfast.errors import ConfigError, ProtocolError
from holdfast.protocol.fields import PIECE_BYTES

CONTENTS = {
    "data/large.bin": bytes(range(256)) * 700,  # more than two pieces
    "data/tool": b"#!/bin/sh\n",
    "empty.txt": b"",
    "job.py": b"x = 1\n",
}


def described(path: str, content: bytes) -> BundledFile:
    return BundledFile(path, hashlib.sha256(content).hexdigest(), len(content), path == "data/tool")


MANIFEST = manifest_of([described(*item) for item in CONTENTS.items()], ["data"])


SHA = MANIFEST.sha256


def pieces_of(manifest: BundleManifest = MANIFEST) -> list[FilePiece]:
    return [
        FilePiece(file, offset, CONTENTS[manifest.files[file].path][offset : offset + length])
        for file, offset, length in expected_pieces(manifest)
    ]


PIECES = pieces_of()


def left_in(cache: Path) -> list[str]:
    return sorted(name for name in os.listdir(cache) if name != ".lock")


def test_what_was_unpacked_is_what_was_packed_and_is_private(tmp_path: Path) -> None:
    root = unpack(tmp_path / "cache", MANIFEST, PIECES)
    assert root == tmp_path / "cache" / MANIFEST.sha256 / "files"
    assert {path: (root / path).read_bytes() for path in CONTENTS} == CONTENTS
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "cache").rglob("*")}
    assert {mode for p, mode in modes.items() if p.is_dir()} == {0o700}
    assert {p.name for p, mode in modes.items() if mode == 0o700 and p.is_file()} == {"tool"}
    assert {mode for p, mode in modes.items() if p.is_file()} == {0o600, 0o700}
    assert len(PIECES) == 5
    assert len(PIECES[0].content) == PIECE_BYTES
    assert import_folders(root) == [str(root / "data")]


def test_what_is_there_is_used_again_without_a_piece(tmp_path: Path) -> None:
    root = unpack(tmp_path, MANIFEST, PIECES)
    assert unpack(tmp_path, MANIFEST, []) == root == cached(tmp_path, MANIFEST.sha256)


def spoil(root: Path, how: str) -> None:
    job = root / "job.py"
    if how == "other content":
        job.write_bytes(b"x = 2\n")
    elif how == "longer":
        job.write_bytes(b"x = 1\n\n")
    elif how == "manifest":
        (root.parent / "manifest.json").write_bytes(MANIFEST.text + b" ")
    else:
        job.unlink()
    if how == "link":
        (root.parent / "elsewhere").write_bytes(CONTENTS["job.py"])
        job.symlink_to(root.parent / "elsewhere")
    if how == "folder":
        job.mkdir()


SPOILED = ["other content", "longer", "gone", "link", "folder", "manifest"]


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_damaged_is_not_used_and_made_anew(tmp_path: Path, how: str) -> None:
    root = unpack(tmp_path, MANIFEST, PIECES)
    spoil(root, how)
    assert cached(tmp_path, MANIFEST.sha256) is None
    with pytest.raises(ProtocolError):
        unpack(tmp_path, MANIFEST, [])
    assert unpack(tmp_path, MANIFEST, PIECES) == root == cached(tmp_path, MANIFEST.sha256)
    assert left_in(tmp_path) == [MANIFEST.sha256]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_pieces_that_are_not_those_of_the_manifest_leave_nothing(tmp_path: Path, data: Any) -> None:
    pieces = list(PIECES)
    at = data.draw(st.integers(0, len(pieces) - 1))
    match data.draw(
        st.sampled_from(["drop", "twice", "swap", "flip", "short", "long", "elsewhere"])
    ):
        case "drop":
            del pieces[at]
        case "twice":
            pieces.insert(at, pieces[at])
        case "swap":
            other = (at + 1) % len(pieces)
            pieces[at], pieces[other] = pieces[other], pieces[at]
        case "flip":
            content = bytearray(pieces[at].content)
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(
                st.integers(0, 7)
            )
            pieces[at] = pieces[at]._replace(content=bytes(content))
        case "short":
            pieces[at] = pieces[at]._replace(content=pieces[at].content[:-1])
        case "long":
            pieces[at] = pieces[at]._replace(content=pieces[at].content + b"x")
        case "elsewhere":
            pieces[at] = pieces[at]._replace(offset=pieces[at].offset + 1)
    with pytest.raises(ProtocolError, match="job bundle"):
        unpack(tmp_path / "cache", MANIFEST, pieces)
    assert left_in(tmp_path / "cache") == []


def test_an_empty_file_with_another_sha256_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="a has 0 bytes and another"):
        unpack(tmp_path, manifest_of([BundledFile("a", "5a" * 32, 0, False)]), [])
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EIO, "HOLDFAST_CACHE")],
)
def test_a_disk_that_takes_no_more_is_told_in_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    unpacking = Unpacking(tmp_path, MANIFEST)
    unpacking.take(PIECES[0])
    usual = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **others: Any) -> Any:
        if "a" in mode:
            raise OSError(number, os.strerror(number))
        return usual(path, mode, *more, **others)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ConfigError, match=says) as told:
        unpacking.take(PIECES[1])
    assert "\n" not in str(told.value)
    unpacking.abandon()
    assert left_in(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written there.*set HOLDFAST_CACHE"):
        unpack(tmp_path / "file" / "cache", MANIFEST, PIECES)


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="other users may write there"):
        unpack(tmp_path, MANIFEST, PIECES)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", [".", SHA, f"{SHA}/manifest.json", f"{SHA}/files/job.py"])
def test_what_others_may_write_is_not_used(tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    unpack(cache, MANIFEST, PIECES)
    place = cache / name
    place.chmod(place.stat().st_mode | 0o020)
    assert cached(cache, SHA) is None
    if name != ".":  # such a cache is refused
        root = unpack(cache, MANIFEST, PIECES)
        assert cached(cache, SHA) == root
        assert left_in(cache) == [SHA]


def test_neither_is_what_others_have_put_there(tmp_path: Path, monkeypatch: Any) -> None:
    cache = tmp_path / "cache"
    root = unpack(cache, MANIFEST, PIECES)
    (root / "more.py").symlink_to("/tmp/of_somebody_else.py")  # it could be imported
    assert cached(cache, SHA) is None
    (root / "more.py").unlink()
    assert cached(cache, SHA) == root
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert cached(cache, SHA) is None
    with pytest.raises(ConfigError, match="other users may write there"):
        unpack(cache, MANIFEST, PIECES)


def test_what_a_killed_process_has_left_is_cleared_after_a_day(tmp_path: Path) -> None:
    old, new = Unpacking(tmp_path, MANIFEST), Unpacking(tmp_path, MANIFEST)
    [first, second] = left_in(tmp_path)
    os.utime(tmp_path / first, (1, 1))
    unpack(tmp_path, MANIFEST, PIECES)
    assert left_in(tmp_path) == [second, MANIFEST.sha256]
    old.abandon()
    new.abandon()


def test_what_another_process_takes_away_meanwhile_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack(tmp_path, MANIFEST, PIECES)
    listed = Path.rglob
    taken = []

    def gone(path: Path, pattern: str) -> Any:
        if taken:
            return listed(path, pattern)
        taken.append(path)
        shutil.rmtree(root)
        return iter(os.scandir(root))

    monkeypatch.setattr(Path, "rglob", gone)
    assert unpack(tmp_path, MANIFEST, PIECES) == root
    assert taken
    assert is_whole(MANIFEST, root)


def _unpack_often(cache: Path, go: Any) -> None:
    go.wait(30)
    for _ in range(10):
        root = unpack(cache, MANIFEST, PIECES)
        assert (root / "job.py").read_bytes() == CONTENTS["job.py"]


def test_two_processes_at_once_end_with_one_whole_bundle(tmp_path: Path) -> None:
    spoil(unpack(tmp_path, MANIFEST, PIECES), "other content")
    context = multiprocessing.get_context("fork")
    go = context.Event()
    both = [context.Process(target=_unpack_often, args=(tmp_path, go)) for _ in range(2)]
    for one in both:
        one.start()
    go.set()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert left_in(tmp_path) == [MANIFEST.sha256]
    assert cached(tmp_path, MANIFEST.sha256) is not None


def test_the_cache_is_where_the_user_says_or_in_the_home(tmp_path: Path) -> None:
    assert default_cache({"HOLDFAST_CACHE": "/x", "HOME": "/h"}) == Path("/x")
    assert default_cache({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/holdfast/jobs")
    assert default_cache({"HOME": "/h"}) == Path("/h/.cache/holdfast/jobs")


def test_a_folder_that_was_not_unpacked_has_no_import_folders(tmp_path: Path) -> None:
    assert import_folders(tmp_path) == import_folders(tmp_path / "files") == []
