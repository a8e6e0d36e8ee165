"""What a bundle consists of: one canonical form, and nothing else is taken for it."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bundle.manifest import (
    MOST_BYTES,
    MOST_FILES,
    BundledFile,
    manifest_of,
    path_fault,
    read_manifest,
)
from holdfast.errors import ProtocolError

EMPTY = hashlib.sha256().hexdigest()
GOOD = [["a.py", EMPTY, 0, False], ["data/b.txt", "5a" * 32, 7, True]]


def text_of(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def read(values: Any) -> Any:
    text = values if isinstance(values, bytes) else text_of(values)
    return read_manifest(text, hashlib.sha256(text).hexdigest())


def whole(files: list[Any], folders: Any = ()) -> dict[str, Any]:
    return {"files": files, "folders": list(folders), "version": 1}


def test_what_was_written_is_read_again_and_has_the_same_name() -> None:
    made = manifest_of([BundledFile(*row) for row in reversed(GOOD)], ["data"])
    assert made == read_manifest(made.text, made.sha256)
    assert [file.path for file in made.files] == ["a.py", "data/b.txt"]
    assert made.num_bytes == 7


@pytest.mark.parametrize("field", range(4))
def test_every_field_of_a_file_counts_for_the_name(field: int) -> None:
    other: list[Any] = ["c.py", "6b" * 32, 8, True]
    changed = [*GOOD[0]]
    changed[field] = other[field]
    names = {manifest_of([BundledFile(*row)]).sha256 for row in (GOOD[0], changed)}
    assert len(names) == 2


BAD_PATHS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\nb",
    "a\0b",
    "\x1b[2J",
]
BAD_PATHS += ["a\u202eb", "\ud800", "x" * 256, "x/" * 500 + "x", "é" * 128]


@pytest.mark.parametrize("path", [*BAD_PATHS, None, 1, ["a"]], ids=lambda path: repr(path)[:20])
def test_a_path_that_could_lead_elsewhere_or_hide_is_refused(path: Any) -> None:
    with pytest.raises(ProtocolError, match="path="):
        read(whole([[path, EMPTY, 0, False]]))


BAD = {
    "no files": whole([]),
    "too many": whole([[f"{n:06d}", EMPTY, 0, False] for n in range(MOST_FILES + 1)]),
    "twice": whole([GOOD[0], GOOD[0]]),
    "unsorted": whole(GOOD[::-1]),
    "file and folder": whole([["a", EMPTY, 0, False], ["a/b", EMPTY, 0, False]]),
    "file and folder far apart": whole([[p, EMPTY, 0, False] for p in ("a", "a!", "a/b/c")]),
    "too large": whole([[p, EMPTY, MOST_BYTES // 2 + 1, False] for p in "ab"]),
    "size below 0": whole([["a", EMPTY, -1, False]]),
    "size that is no number": whole([["a", EMPTY, "1", False]]),
    "size that is a truth": whole([["a", EMPTY, True, False]]),
    "short sha256": whole([["a", EMPTY[:-1], 0, False]]),
    "mode": whole([["a", EMPTY, 0, 1]]),
    "row too long": whole([[*GOOD[0], 1]]),
    "row too short": whole([GOOD[0][:3]]),
    "other version": whole(GOOD) | {"version": 2},
    "no version": {"files": GOOD, "folders": []},
    "more keys": whole(GOOD) | {"more": 1},
    "folder that is not there": whole(GOOD, ["lib"]),
    "folder that leads elsewhere": whole(GOOD, [".."]),
    "folder twice": whole(GOOD, ["data", "data"]),
    "folders in a text": {"files": GOOD, "folders": "data", "version": 1},
    "not canonical": json.dumps(whole(GOOD)).encode(),
    "key twice": text_of(whole(GOOD)).replace(b'"version":1', b'"version":1,"version":1'),
    "no JSON": b"{",
    "no object": b"[]",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("values", BAD.values(), ids=BAD.keys())
def test_what_is_no_manifest_is_refused(values: Any) -> None:
    with pytest.raises(ProtocolError):
        read(values)


def test_a_manifest_of_another_name_is_refused() -> None:
    with pytest.raises(ProtocolError, match="another SHA-256"):
        read_manifest(text_of(whole(GOOD)), "5a" * 32)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 99) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
ROWS = st.lists(
    st.tuples(st.text("ab/.\n", max_size=5), st.just(EMPTY), st.integers(0, 9), st.booleans()),
    max_size=4,
)


@settings(max_examples=150)
@given(ANY | st.fixed_dictionaries({"files": ROWS | ANY, "folders": ANY, "version": st.just(1)}))
def test_whatever_is_sent_is_a_manifest_or_refused(values: Any) -> None:
    try:
        made = read(values)
    except ProtocolError:
        return
    assert made.text == text_of(values)
    assert all(not path_fault(file.path) for file in made.files)
    assert len({file.path for file in made.files}) == len(made.files)
