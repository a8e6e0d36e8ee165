"""Gets a bundle from the coordinator: asks, a few pieces ahead, and writes what comes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.bundle.manifest import MOST_MANIFEST_BYTES, BundleManifest, read_manifest
from holdfast.bundle.unpacking import FilePiece, Unpacking, cached, expected_pieces
from holdfast.errors import ConfigError, HoldfastError, ProtocolError
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    MANIFEST,
    BundleAsk,
    BundlePiece,
    BundleRefused,
    Message,
    Stop,
)

AHEAD = 4  # pieces that are asked for before the first has come: what a long way holds up


class BundleFetch:
    """For whoever has other things to do meanwhile: messages in, questions out.

    ``root``: of the job, once all is there. Whatever it raises has left nothing behind:
    ConfigError, if it is not to be had or cannot be written; ProtocolError, if what comes is not
    what was asked for.
    """

    def __init__(self, sha256: str, cache: Path) -> None:
        self._sha256, self._cache = sha256, cache
        self._text = b""  # of the manifest, as far as it has come
        self._manifest: BundleManifest | None = None
        self._unpacking: Unpacking | None = None
        self._to_ask: Iterator[BundleAsk] = iter(())
        self._num_left = 0  # pieces that have not come
        self.num_bytes = 0  # that have come
        self.root: Path | None = None

    def begin(self) -> list[BundleAsk]:
        """What to ask first; nothing, if it was there."""
        self.root = cached(self._cache, self._sha256)
        return [] if self.root is not None else [self._ask(MANIFEST, 0)]

    def heard(self, message: BundlePiece | BundleRefused) -> list[BundleAsk]:
        """What to ask next."""
        try:
            return self._heard(message)
        except HoldfastError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nothing half-written stays; harmless after the end."""
        if self._unpacking is not None:
            self._unpacking.abandon()

    def _heard(self, message: BundlePiece | BundleRefused) -> list[BundleAsk]:
        if message.sha256 != self._sha256 or self.root is not None:
            raise ProtocolError(f"job bundle {message.sha256[:12]}: nobody has asked for this")
        if isinstance(message, BundleRefused):
            raise ConfigError(f"the job cannot be had from the run: {message.reason}")
        self.num_bytes += len(message.content)
        if self._manifest is None:
            return self._heard_of_manifest(message)
        assert self._unpacking is not None
        self._unpacking.take(FilePiece(message.file, message.offset, message.content))
        self._num_left -= 1
        return self._next(1)

    def _heard_of_manifest(self, piece: BundlePiece) -> list[BundleAsk]:
        if (piece.file, piece.offset) != (MANIFEST, len(self._text)) or not piece.data:
            raise ProtocolError("job bundle: expected the next piece of its manifest")
        self._text += piece.content
        if not len(self._text) <= piece.size <= MOST_MANIFEST_BYTES:
            raise ProtocolError(f"job bundle: manifest of {piece.size} bytes")
        if len(self._text) < piece.size:
            return [self._ask(MANIFEST, len(self._text))]
        self._manifest = read_manifest(self._text, self._sha256)
        self._unpacking = Unpacking(self._cache, self._manifest)
        pieces = [self._ask(file, offset) for file, offset, _ in expected_pieces(self._manifest)]
        self._to_ask, self._num_left = iter(pieces), len(pieces)
        return self._next(AHEAD)

    def _next(self, number: int) -> list[BundleAsk]:
        assert self._unpacking is not None
        if not self._num_left:
            self.root = self._unpacking.finish()
            return []
        return [ask for _, ask in zip(range(number), self._to_ask, strict=False)]

    def _ask(self, file: int, offset: int) -> BundleAsk:
        return BundleAsk(sha256=self._sha256, file=file, offset=offset)


def fetch(
    connection: Connection,
    sha256: str,
    cache: Path,
    limit_s: float,
    other: Callable[[Message], None] = lambda message: None,
) -> Path:
    """The root of the job, in the cache. ``other``: told what else is said meanwhile.

    ConfigError, PeerLost or ProtocolError, of one line each.
    """
    fetching = BundleFetch(sha256, cache)
    deadline_s = time.monotonic() + limit_s
    try:
        _send_all(connection, fetching.begin())
        while fetching.root is None:
            messages = connection.read_within(deadline_s - time.monotonic())
            if not messages:
                raise ConfigError(
                    f"the job has not come within {limit_s:g} s ({fetching.num_bytes} bytes "
                    "have); is the network slow, or the run busy? Try again"
                )
            for message in messages:
                match message:
                    case BundlePiece() | BundleRefused():
                        _send_all(connection, fetching.heard(message))
                    case Stop():
                        raise ConfigError(f"the run does not send its job: {message.reason}")
                    case _:
                        other(message)
    finally:
        fetching.abandon()
    return fetching.root


def _send_all(connection: Connection, asks: list[BundleAsk]) -> None:
    for ask in asks:
        connection.send(ask)
