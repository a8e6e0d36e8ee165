"""Checkpoints at an address: parts as objects that nobody replaces, then the manifest, once.

There are no locks there. Each launch of a run takes the next number, which one alone gets; a
coordinator that was left behind sees a higher one than its own and seals no more. Whoever comes
second to a manifest is refused and says so.
"""

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast import names
from holdfast.checkpoint_address import checkpoint_at
from holdfast.errors import CheckpointError, ConfigError, ProtocolError, ResumeFrom
from holdfast.storage.contents import Checkpoint, Origin, Part, from_values, to_values
from holdfast.storage.manifest import clear_leftovers, manifest_text, partial_directory
from holdfast.storage.remote import keys
from holdfast.storage.remote.bucket import ObjectStore
from holdfast.storage.remote.object_bucket import open_bucket
from holdfast.storage.remote.reading import sealed_at

_MOST_TRIES, _PAUSE_S = 20, 0.2
_LEAST_KEPT = 2  # while the newest is sealed, somebody may be reading the one before


class RemoteStore:
    seals_at_once = False

    def __init__(
        self, address: str, run_dir: Path, own_dir: Callable[[], Path] | None = None
    ) -> None:
        """``own_dir``: of this machine, for parts on their way; None: the run's."""
        self.address, self.run_dir = address, run_dir
        self._own_dir = own_dir or (lambda: run_dir)
        self._launch = 0  # which one this is; 0: it seals nothing
        self._aside: dict[str, frozenset[str]] = {}  # manifest -> keys of its files

    @cached_property
    def _bucket(self) -> ObjectStore:
        """Opened by those who use it: an agent's threads would not survive its fork."""
        return open_bucket(self.address)

    # --- for those who hold a stage ---

    def staging(self, step: int, name: str) -> Path:
        """Of its own: it comes and goes beside those of other writers."""
        beside = partial_directory(self._own_dir(), step)
        return beside.with_suffix(f".{names.PART.check(name, 'the directory of a part')}.partial")

    def put_part(self, step: int, name: str, digests: Mapping[str, str]) -> None:
        staged = self.staging(step, name)
        for file, digest in digests.items():
            key = keys.part_file(names.checkpoint_name(step), name, file, digest)
            self._bucket.put_file(key, staged / file)
        shutil.rmtree(staged, ignore_errors=True)

    # --- for the one who seals ---

    def check(self, resume: Checkpoint | None) -> None:
        sealed = sealed_at(self._bucket)
        if sealed and not self._continues(resume):
            raise ConfigError(
                f"checkpoint.dir={self.address}: already holds a run; choose another address, or "
                "go on with it: ",
                ResumeFrom(self.address),
            )

    def open(self, resume: Checkpoint | None) -> None:
        clear_leftovers(self.run_dir)
        self.check(resume)  # somebody else may have come since
        if not self._take_next_launch():
            raise ConfigError(
                f"checkpoint.dir={self.address}: another run is starting there; choose another "
                "address"
            )
        if resume is not None and self._continues(resume):
            self._set_aside_after(resume.step)

    def take_over(self) -> None:
        """Whoever sealed before is left behind from here on.

        Somebody who leads no more may come in between, and what is listed may be old.
        """
        for number in range(_MOST_TRIES):
            if self._take_next_launch(above=number):
                return
            time.sleep(_PAUSE_S)
        raise CheckpointError(
            f"{self.address}: {_MOST_TRIES} numbers of launches in a row were taken by others; "
            "expected one coordinator to take over; end the others, and try again"
        )

    def _take_next_launch(self, *, above: int = 0) -> bool:
        """False: somebody else has the number. ``above``: so many that are not listed."""
        number = keys.newest_launch(self._bucket.sizes(keys.LAUNCHES)) + 1 + above
        mine = json.dumps({"launch": number, "token": secrets.token_hex(16)}).encode()
        if self._put_once(keys.launch(number), mine) is not None:
            return False
        self._launch = number
        return True

    def _continues(self, resume: Checkpoint | None) -> bool:
        return resume is not None and resume.address == self.address

    def _set_aside_after(self, step: int) -> None:
        """Later checkpoints of a history that is being rewritten: kept, but no longer found."""
        for name in sealed_at(self._bucket):
            data = self._bucket.read(keys.manifest(name)) if keys.step_of(name) > step else None
            if data is not None:
                self._put_once(keys.aside(name, self._launch), data)
                self._bucket.delete([keys.manifest(name)])

    def seal(
        self,
        step: int,
        parts: Sequence[Part],
        *,
        seed: int,
        microbatches: int,
        origin: Origin | None = None,
    ) -> str:
        place = checkpoint_at(self.address, step)
        self._check_newest()
        self._check_parts(step, parts)
        whole = Checkpoint(place, step, seed, microbatches, tuple(parts), origin or Origin())
        values = {**to_values(whole), "launch": self._launch}
        self._put_manifest(names.checkpoint_name(step), manifest_text(values).encode())
        return place

    def _check_newest(self) -> None:
        newest = keys.newest_launch(self._bucket.sizes(keys.LAUNCHES))
        if newest != self._launch:
            raise CheckpointError(
                f"{self.address}: launch {newest} of the run has taken over; this one, "
                f"{self._launch}, saves nothing more"
            )

    def _check_parts(self, step: int, parts: Sequence[Part]) -> None:
        """What their writers have said of them. They are read when somebody loads them."""
        name = names.checkpoint_name(step)
        there = self._bucket.sizes(keys.folder(name))
        for part in parts:
            for file, key in keys.part_files(name, part).items():
                found, said = there.get(key), part.sizes.get(file)
                if found is None or found != (found if said is None else said):
                    has = "is not there" if found is None else f"has {found} bytes"
                    raise CheckpointError(
                        f"{self.address}/{key}: {has}, its writer said {said} bytes"
                    )

    def _put_manifest(self, name: str, data: bytes) -> None:
        key = keys.manifest(name)
        other = self._put_once(key, data)
        if other is not None and _launch_of(other) == self._launch:
            # Its answer was lost, and the steps were trained again since.
            self._bucket.delete([key])
            other = self._put_once(key, data)
        if other is not None and not _is_the_same(data, other):
            raise CheckpointError(
                f"{self.address}: {name} was sealed by launch {_launch_of(other)} of the run, and "
                f"stays; that of this one, {self._launch}, is not kept"
            )

    def _put_once(self, key: str, data: bytes) -> bytes | None:
        """None: it is there. Else what somebody else has put before."""
        if self._bucket.put_if_absent(key, data):
            return None
        found = self._bucket.read(key)  # ours, if only the answer was lost
        return None if found == data else found or b""

    # --- retention ---

    def tidy(self, keep: int, step: int, best: int | None = None) -> None:
        with suppress(CheckpointError):  # it only takes room; the next one tries again
            self._tidy(keep, step, best)

    def _tidy(self, keep: int, step: int, best: int | None) -> None:
        there = keys.by_checkpoint(self._bucket.sizes(keys.CHECKPOINTS))
        sealed = keys.sealed(key for found in there.values() for key in found)
        old = set(sealed[: -max(keep, _LEAST_KEPT)])
        if best is not None:
            old.discard(names.checkpoint_name(best))
        # A part may still be on its way to a step that is to come.
        never = {name for name in there if name not in sealed and keys.step_of(name) < step}
        kept = self._kept_aside() if old or never else frozenset[str]()
        for name in sorted(old | never):
            # Without its manifest it is none; only then the rest.
            self._bucket.delete([keys.manifest(name)] if name in old else [])
            files = [key for key in there[name] if key != keys.manifest(name)]
            self._bucket.delete(key for key in files if key not in kept)

    def _kept_aside(self) -> frozenset[str]:
        for key in keys.set_aside(self._bucket.sizes(keys.ASIDE)):
            if key not in self._aside:
                name = key.removeprefix(keys.ASIDE).partition(".")[0]
                self._aside[key] = _files_of(name, self._bucket.read(key) or b"")
        return frozenset[str]().union(*self._aside.values())


def _files_of(name: str, data: bytes) -> frozenset[str]:
    """Of a manifest; one that cannot be read keeps nothing."""
    try:
        parts = from_values("", json.loads(data)).parts
        return frozenset(key for part in parts for key in keys.part_files(name, part).values())
    except (ValueError, KeyError, TypeError, AttributeError, ProtocolError):
        return frozenset()


def _launch_of(data: bytes) -> Any:
    try:
        return json.loads(data)["launch"]
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _is_the_same(data: bytes, other: bytes) -> bool:
    """Sealed by one that was taken over from before it could say so."""
    try:
        ours, theirs = (from_values("", json.loads(each)) for each in (data, other))
    except (ValueError, KeyError, TypeError, AttributeError, ProtocolError):
        return False
    return (ours.step, ours.parts) == (theirs.step, theirs.parts)
