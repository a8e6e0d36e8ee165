"""Answers who asks for the job, piece by piece. One answer for each question, nothing kept."""

import base64
from pathlib import Path

from holdfast.bundle.manifest import BundleManifest
from holdfast.bundle.packing import JobBundle
from holdfast.bundle.unpacking import FilePiece, cached, expected_pieces, unpack
from holdfast.errors import ConfigError
from holdfast.protocol.fields import PIECE_BYTES
from holdfast.protocol.messages import MANIFEST, BundleAsk, BundlePiece, BundleRefused


def keep(bundle: JobBundle, cache: Path) -> JobBundle:
    """A copy that stays as it is while the user goes on to edit.

    ConfigError: it cannot be written, or a file was changed meanwhile.
    """
    if (found := cached(cache, bundle.sha256)) is None:
        manifest = bundle.manifest
        pieces = (
            FilePiece(
                number, offset, _read(bundle.root / manifest.files[number].path, offset, length)
            )
            for number, offset, length in expected_pieces(manifest)
        )
        found = unpack(cache, manifest, pieces)
    return JobBundle(bundle.manifest, found, bundle.unsent)


class BundleServer:
    """``bundle``: None: the run has none, or it is not on this machine: then ``sha256`` says which
    it is."""

    def __init__(self, bundle: JobBundle | None, sha256: str = "") -> None:
        self._bundle, self._sha256 = bundle, sha256

    @property
    def sha256(self) -> str:
        """That agents and joiners are told of; empty: they need none."""
        return self._sha256 if self._bundle is None else self._bundle.sha256

    def answer(self, ask: BundleAsk) -> BundlePiece | BundleRefused:
        bundle = self._bundle
        if bundle is None or ask.sha256 != bundle.sha256:
            return BundleRefused(sha256=ask.sha256, reason=self._missing(ask.sha256))
        size = _size(bundle.manifest, ask.file)
        if size is None or ask.offset > size:
            reason = f"the job bundle has nothing at {ask.offset} of file {ask.file}"
            return BundleRefused(sha256=ask.sha256, reason=reason)
        length = min(PIECE_BYTES, size - ask.offset)
        try:
            content = _content(bundle, ask, length)
        except ConfigError as why:
            return BundleRefused(sha256=ask.sha256, reason=str(why))
        return BundlePiece(
            sha256=ask.sha256,
            file=ask.file,
            offset=ask.offset,
            size=size,
            data=base64.b64encode(content).decode(),
        )

    def _missing(self, sha256: str) -> str:
        if sha256 == self._sha256:
            return "it is not on the machine that has taken over; bring the job there, or here"
        return "the run has no such job bundle"


def _size(manifest: BundleManifest, file: int) -> int | None:
    if file == MANIFEST:
        return len(manifest.text)
    return manifest.files[file].size if 0 <= file < len(manifest.files) else None


def _content(bundle: JobBundle, ask: BundleAsk, length: int) -> bytes:
    if ask.file == MANIFEST:
        return bundle.manifest.text[ask.offset : ask.offset + length]
    return _read(bundle.root / bundle.manifest.files[ask.file].path, ask.offset, length)


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(length)
    except OSError as why:
        raise ConfigError(
            f"{path}: cannot be read any more ({why.strerror}), and is part of the job; put it "
            "back, or start a new run"
        ) from why
    if len(content) != length:
        raise ConfigError(
            f"{path}: was changed since the run began, and is part of the job; put it back, or "
            "start a new run"
        )
    return content
