"""A bundle over a connection: what arrives is what was packed, or nothing arrives."""

import base64
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.stamps import stamps_of_both
from holdfast.api.job_source import job_source
from holdfast.bundle import fetching
from holdfast.bundle.fetching import BundleFetch, fetch
from holdfast.bundle.packing import JobBundle, pack
from holdfast.bundle.serving import BundleServer, keep
from holdfast.errors import ConfigError, HoldfastError, PeerLost, ProtocolError
from holdfast.protocol.connection import Connection
from holdfast.protocol.fields import PIECE_BYTES
from holdfast.protocol.messages import (
    MANIFEST,
    BundleAsk,
    BundlePiece,
    BundleRefused,
    Message,
    Stop,
)

LIMIT_S = 30.0
JOB = 'HOLDFAST_FILES = ["data.bin"]\nimport beside\n'
DATA = bytes(range(256)) * 2000
Answer = Callable[[BundleAsk], list[Message]]


@pytest.fixture
def bundle(tmp_path: Path) -> JobBundle:
    folder = tmp_path / "launcher"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    (folder / "beside.py").touch()
    (folder / "data.bin").write_bytes(DATA)
    made = pack(job_source(folder / "job.py", in_threads=False))
    assert made is not None
    return made


@contextmanager
def both_ends() -> Iterator[tuple[Connection, Connection]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    ends = [Connection(s, t) for s, t in zip((near, far), stamps_of_both(), strict=True)]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


@contextmanager
def answered_by(answer: Answer) -> Iterator[Connection]:
    """Our end of a connection to somebody who answers so."""

    def serve() -> None:
        try:
            while True:
                for ask in far.read():
                    assert isinstance(ask, BundleAsk)
                    for message in answer(ask):
                        far.send(message)
        except PeerLost:
            return

    with both_ends() as (near, far):
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield near
        finally:
            near.close()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def honest(bundle: JobBundle) -> Answer:
    server = BundleServer(bundle)
    return lambda ask: [server.answer(ask)]


def partial(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*") if path.name != ".lock"]


def test_what_arrives_is_what_was_packed_and_comes_once(bundle: JobBundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with answered_by(honest(bundle)) as connection:
        root = fetch(connection, bundle.sha256, cache, LIMIT_S)
    assert (root / "data.bin").read_bytes() == DATA
    assert {path.name for path in root.iterdir()} == {"job.py", "beside.py", "data.bin"}
    with both_ends() as (near, far):  # nobody answers, and nobody needs to
        assert fetch(near, bundle.sha256, cache, LIMIT_S) == root
        near.close()
        with pytest.raises(PeerLost):
            far.read()


def test_no_more_pieces_are_asked_for_ahead_than_may_be(bundle: JobBundle, tmp_path: Path) -> None:
    server, fetching_it = BundleServer(bundle), BundleFetch(bundle.sha256, tmp_path / "cache")
    under_way, most, num = fetching_it.begin(), 0, 0
    while under_way:
        most, num = max(most, len(under_way)), num + 1
        under_way += fetching_it.heard(server.answer(under_way.pop(0)))
    assert fetching_it.root is not None
    assert most == fetching.AHEAD
    assert num == 2 + -(-len(DATA) // PIECE_BYTES)  # the manifest, the job, and no empty file


def test_a_copy_stays_as_it_is_whatever_becomes_of_the_job(
    bundle: JobBundle, tmp_path: Path
) -> None:
    kept = keep(bundle, tmp_path / "run" / "bundle")
    for name in ("job.py", "data.bin", "beside.py"):
        (bundle.root / name).unlink()
    with answered_by(honest(kept)) as connection:
        root = fetch(connection, bundle.sha256, tmp_path / "cache", LIMIT_S)
    assert (root / "data.bin").read_bytes() == DATA
    assert keep(kept, tmp_path / "run" / "bundle") == kept


CHANGES: dict[str, tuple[Callable[[Path], object], type[HoldfastError], str]] = {
    "gone": (lambda p: p.unlink(), ConfigError, "data.bin: cannot be read any more"),
    "shorter": (lambda p: p.write_bytes(DATA[:-1]), ConfigError, "data.bin: was changed since"),
    "other": (lambda p: p.write_bytes(DATA[::-1]), ProtocolError, "data.bin is not as the run"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_was_changed_under_the_run_is_told_by_name(
    bundle: JobBundle, tmp_path: Path, how: str
) -> None:
    change, kind, says = CHANGES[how]
    change(bundle.root / "data.bin")
    cache = tmp_path / "cache"
    with answered_by(honest(bundle)) as connection, pytest.raises(kind, match=says):
        fetch(connection, bundle.sha256, cache, LIMIT_S)
    assert partial(cache) == []


def test_another_bundle_than_the_run_has_is_refused(bundle: JobBundle, tmp_path: Path) -> None:
    says = "cannot be had from the run: the run has no such job bundle"
    for served in (bundle, None):
        answer = BundleServer(served).answer
        with (
            answered_by(lambda ask, answer=answer: [answer(ask)]) as connection,
            pytest.raises(ConfigError, match=says),
        ):
            fetch(connection, "5a" * 32, tmp_path / "cache", LIMIT_S)
    assert BundleServer(None).sha256 == ""


@pytest.mark.parametrize(("file", "offset"), [(3, 0), (10**9, 0), (0, 1), (MANIFEST, 10**9)])
def test_a_question_about_nothing_is_refused(bundle: JobBundle, file: int, offset: int) -> None:
    ask = BundleAsk(sha256=bundle.sha256, file=file, offset=offset)
    assert isinstance(BundleServer(bundle).answer(ask), BundleRefused)


LIES: dict[str, Callable[[BundlePiece], list[Message]]] = {
    "other bundle": lambda piece: [replace(piece, sha256="5a" * 32)],
    "other file": lambda piece: [replace(piece, file=piece.file + 1)],
    "other offset": lambda piece: [replace(piece, offset=piece.offset + 1)],
    "empty": lambda piece: [replace(piece, data="")],
    "other content": lambda piece: [replace(piece, data=base64.b64encode(b"x" * 99).decode())],
    "twice": lambda piece: [piece, piece],
}
IN_THE_MANIFEST = {"endless": lambda piece: [replace(piece, size=1 << 40)]}


@pytest.mark.parametrize(("lie", "at"), [*itertools.product(LIES, [0, 1, 2]), ("endless", 0)])
def test_lies_are_found_out_and_leave_nothing(
    bundle: JobBundle, tmp_path: Path, lie: str, at: int
) -> None:
    cache, server, num = tmp_path / "cache", BundleServer(bundle), 0

    def answer(ask: BundleAsk) -> list[Message]:
        nonlocal num
        told = server.answer(ask)
        num += 1
        assert isinstance(told, BundlePiece)
        return (LIES | IN_THE_MANIFEST)[lie](told) if num == at + 1 else [told]

    with answered_by(answer) as connection, pytest.raises(ProtocolError, match="job bundle"):
        fetch(connection, bundle.sha256, cache, LIMIT_S)
    assert not cache.exists() or partial(cache) == []


def test_a_run_that_ends_or_is_silent_is_told_in_one_line(
    bundle: JobBundle, tmp_path: Path
) -> None:
    cache, server = tmp_path / "cache", BundleServer(bundle)

    def ends(ask: BundleAsk) -> list[Message]:
        return [Stop(reason="it is over") if ask.file else server.answer(ask)]

    with answered_by(ends) as connection, pytest.raises(ConfigError, match="it is over"):
        fetch(connection, bundle.sha256, cache, LIMIT_S)
    silent = "has not come within 0.1 s .*Try again"
    with answered_by(lambda ask: []) as connection, pytest.raises(ConfigError, match=silent):
        fetch(connection, bundle.sha256, cache, 0.1)
    assert not cache.exists() or partial(cache) == []
