"""The job on its way to a machine that does not have it: asked for and sent piece by piece."""

import base64
from dataclasses import dataclass

from holdfast.protocol.fields import Base64, Number, NumberOrNone, Sha256

MANIFEST = -1  # in the place of a file's number: what the bundle consists of


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleAsk:
    """agent or joiner -> coordinator: what follows in this file from here on?"""

    sha256: Sha256  # of the bundle
    file: NumberOrNone  # its place in the manifest, or MANIFEST
    offset: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePiece:
    """coordinator -> whoever asked. Nobody believes it before its SHA-256 was looked at."""

    sha256: Sha256
    file: NumberOrNone
    offset: Number
    size: Number  # of the whole file
    data: Base64

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRefused:
    """coordinator -> whoever asked: there is no such bundle, or it cannot be read."""

    sha256: Sha256
    reason: str  # one line


BundleMessage = BundleAsk | BundlePiece | BundleRefused
