"""Objects in S3 and its like, through obstore; loaded when an address asks for it."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import CheckpointError, ConfigError
from holdfast.storage.remote.bucket import MOST_READ_BYTES, FolderBucket, ObjectStore

REQUEST_LIMIT_S = 60.0  # of one request: a manifest, a listing, one piece of a file
CONNECT_LIMIT_S = 5.0
RETRIES, RETRY_LIMIT_S = 4, 20.0  # of each request, before it counts as failed
_PIECE_BYTES = 8 << 20
_AT_ONCE = 4  # pieces of one file
_MOST_KEYS = 100_000
_NO_ACCESS = (
    *("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"),
    *("403 Forbidden", "401 Unauthorized", "Missing SecretAccessKey", "Missing AccessKeyId"),
    "/latest/api/token",  # asked for a role of the machine, as there are no keys
)


def open_bucket(address: str) -> ObjectStore:
    """ConfigError: what it needs is not there."""
    if address.startswith("file://"):
        return FolderBucket(address)
    try:
        import obstore
        import obstore.store
    except ImportError as why:
        raise ConfigError(
            f"{address}: needs the package obstore; install it with: pip install 'holdfast[s3]'"
        ) from why
    return ObjectBucket(address, obstore)


class ObjectBucket:
    def __init__(self, address: str, obstore: ModuleType) -> None:
        self.address = address
        self._obstore = obstore
        with self._in_one_line():
            self._store = obstore.store.from_url(address, **_limits())

    def put_file(self, key: str, path: Path) -> None:
        with self._in_one_line():
            self._obstore.put(
                self._store, key, path, chunk_size=_PIECE_BYTES, max_concurrency=_AT_ONCE
            )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._in_one_line():
            try:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def read(self, key: str) -> bytes | None:
        with self._in_one_line():
            try:
                found = self._obstore.get(self._store, key)
            except FileNotFoundError:
                self._obstore.list(self._store, key).collect()  # raises if there is no bucket
                return None
            if found.meta["size"] > MOST_READ_BYTES:
                raise CheckpointError(f"{self.address}/{key}: is too large for a manifest")
            return bytes(found.bytes())

    def fetch(self, key: str, path: Path) -> str:
        digest = hashlib.sha256()
        with self._in_one_line(), open(path, "wb") as file:
            for chunk in self._obstore.get(self._store, key).stream(min_chunk_size=1 << 20):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._in_one_line():
            for batch in self._obstore.list(self._store, prefix):
                found |= {entry["path"]: entry["size"] for entry in batch}
                if len(found) > _MOST_KEYS:
                    raise CheckpointError(f"{self.address}/{prefix}: more than {_MOST_KEYS} keys")
        return found

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        with self._in_one_line():
            if wanted:
                self._obstore.delete(self._store, wanted)

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as why:
            raise CheckpointError(f"{self.address}: {_words(str(why))}") from why


def _limits() -> dict[str, Any]:
    """An endpoint without TLS is used only if the user names it so."""
    endpoints = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return {
        "client_options": {
            "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints),
            "timeout": timedelta(seconds=REQUEST_LIMIT_S),
            "connect_timeout": timedelta(seconds=CONNECT_LIMIT_S),
        },
        "retry_config": {
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_LIMIT_S),
            "backoff": {
                "init_backoff": timedelta(seconds=0.2),
                "max_backoff": timedelta(seconds=4),
                "base": 2,
            },
        },
    }


def _words(text: str) -> str:
    """The client's own words have a dozen lines."""
    if "NoSuchBucket" in text:
        return "this bucket does not exist; make it, or choose another address"
    if any(sign in text for sign in _NO_ACCESS):
        return (
            "no access; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the like of your "
            f"provider ({_first(text)})"
        )
    return _first(text)


def _first(text: str) -> str:
    line = text.partition("\n")[0].removeprefix("Generic S3 error: ")
    return line if len(line) <= 200 else f"{line[:200]}..."
