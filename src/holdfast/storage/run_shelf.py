"""The launcher's side of files that come and go: parts of checkpoints, and states to load.

What is asked for has a name; where that lies is known here. A file that is put has its name when
its size and SHA-256 are what was said, and it is on disk: not before, and else not at all.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast import names
from holdfast.checkpoint_address import is_address
from holdfast.errors import ProtocolError
from holdfast.files.courier import MOST_FILE_BYTES
from holdfast.files.file_link import PIECE_BYTES, FileLink, FileWords
from holdfast.storage.manifest import MANIFEST, checkpoints, partial_directory, sync_directory
from holdfast.storage.run_paths import rebuilt_states


class RunShelf:
    """``resumed``: what the run went on from; empty: nothing."""

    def __init__(self, run_dir: Path, resumed: str) -> None:
        self._run_dir, self._resumed = run_dir, resumed

    def answer(self, ask: FileWords, link: FileLink) -> None:
        """ProtocolError: it may not be asked for; OSError: it cannot be done."""
        match ask.get("do"):
            case "put":
                self._put(ask, link)
            case "get":
                self._get(ask, link)
            case other:
                raise ProtocolError(f"do={other!r}: expected put or get")

    # --- what comes ---

    def _put(self, ask: FileWords, link: FileLink) -> None:
        state, name = self._new_state(ask), _file_name(ask)
        size = names.check_number(ask.get("size"), "size", 0, MOST_FILE_BYTES)
        sha256 = names.SHA256.check(ask.get("sha256"), "sha256")
        folder = state if name == MANIFEST else state / _part(ask)
        # Beside it, and not in it: a part that is whole has no other file.
        aside = state.with_name(f"{state.name}.{secrets.token_hex(8)}.partial")
        aside.mkdir(mode=0o700, parents=True)
        try:
            link.say({})
            with open(aside / name, "xb") as file:
                _take(link, file, size, sha256)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (aside / name).replace(folder / name)
            for directory in (folder, state, state.parent):
                sync_directory(directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        link.say({})

    def _new_state(self, ask: FileWords) -> Path:
        """A checkpoint's manifest is for the launcher alone to write."""
        name = ask.get("state")
        if names.REBUILT.fits(name):
            return rebuilt_states(self._run_dir) / str(name)
        checkpoint = names.CHECKPOINT.check(name, "state")
        if _file_name(ask) == MANIFEST:
            raise ProtocolError(f"{MANIFEST} of {checkpoint}: is not for workers to write")
        return partial_directory(self._run_dir, int(checkpoint.removeprefix("step-")))

    # --- what goes ---

    def _get(self, ask: FileWords, link: FileLink) -> None:
        state, name = self._state(ask), _file_name(ask)
        path = state / name if name == MANIFEST else state / _part(ask) / name
        with open(path, "rb", opener=_no_link) as file:
            size = os.fstat(file.fileno()).st_size
            link.say({"size": size})
            link.send_pieces(_pieces(file, size))

    def _state(self, ask: FileWords) -> Path:
        name = ask.get("state")
        if names.RESUMED.fits(name):
            if not self._resumed or is_address(self._resumed):
                raise ProtocolError("state=resumed: the run did not go on from a directory")
            return Path(self._resumed)
        if names.REBUILT.fits(name):
            return rebuilt_states(self._run_dir) / str(name)
        return checkpoints(self._run_dir) / names.CHECKPOINT.check(name, "state")


def _part(ask: FileWords) -> str:
    return names.PART.check(ask.get("part"), "part")


def _file_name(ask: FileWords) -> str:
    return names.PART_FILE.check(ask.get("file"), "file")


def _take(link: FileLink, file: BinaryIO, size: int, sha256: str) -> None:
    digest = hashlib.sha256()
    for piece in link.pieces(size):
        digest.update(piece)
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())
    if digest.hexdigest() != sha256:
        raise ProtocolError("what came is not what was said (SHA-256 differs)")


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """As many bytes as were said, also of a file that grows."""
    while size:
        piece = file.read(min(size, PIECE_BYTES))
        if not piece:
            raise ProtocolError("the file has become shorter")
        size -= len(piece)
        yield piece


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
