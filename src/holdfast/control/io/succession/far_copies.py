"""While one stands by on another machine: job and checkpoints of the run are copied from it.

A thread of its own: what is large keeps no events waiting. One thing at a time, and again until it
is there.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.auth.handshake import COORDINATOR, JOINER
from holdfast.bundle.fetching import fetch
from holdfast.bundle.unpacking import cached, default_cache
from holdfast.control.io.succession.run_journal import LeftBehind
from holdfast.errors import HoldfastError
from holdfast.files.courier import BreakableCourier
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import Access
from holdfast.storage.copied_states import copies_of, copy_checkpoint

PAUSE_S = 0.3
_AGAIN_S = 3.0  # after something could not be had
_LIMIT_S = 10.0  # of one question
_BUNDLE_LIMIT_S, _FILE_LIMIT_S = 600.0, 1800.0
_BEFORE_S = 60.0  # for the copier before: longer than a connection takes to fail


class Copier:
    """From one coordinator. ``before``: the one for whoever led before."""

    def __init__(
        self, access: Access, left: LeftBehind, run_dir: Path, before: "Copier | None" = None
    ) -> None:
        self._access, self._before = access, before
        self._bundle = left.facts.bundle  # SHA-256 of the job that is to be copied; empty: none
        self._copies = copies_of(run_dir, left.snapshot.run_id)
        self._courier = courier_to(access, left.facts.launch, _FILE_LIMIT_S)
        self._wanted: int | None = None  # step of the checkpoint that is to be copied
        self._copied: int | None = None
        self.trouble = ""  # why something was not copied the last time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, step: int) -> None:
        """By any thread. Nobody needs an older one then."""
        self._wanted = step

    def stop(self) -> None:
        """What is under way is broken off; does not wait for it."""
        self._ended.set()
        self._courier.break_off()

    def wait(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self) -> None:
        if self._before is not None:
            self._before.wait(_BEFORE_S)  # it writes to the same place
            self._before = None
        pause_s = PAUSE_S
        while not self._ended.wait(pause_s):
            failures = [_failure_of(act) for act in (self._copy_job, self._copy_checkpoint)]
            self.trouble = " ".join(filter(None, failures))
            pause_s = _AGAIN_S if self.trouble else PAUSE_S

    def _copy_job(self) -> None:
        """Once it is there nobody asks again: each byte of it would be verified."""
        bundle, cache = self._bundle, default_cache(os.environ)
        if bundle and cached(cache, bundle) is None:
            connection, _ = connect(self._access, JOINER, "", _LIMIT_S)
            try:
                fetch(connection, bundle, cache, _BUNDLE_LIMIT_S)
            finally:
                connection.close()
        self._bundle = ""

    def _copy_checkpoint(self) -> None:
        step = self._wanted
        if step is not None and step != self._copied:
            copy_checkpoint(self._courier, self._copies, step)
            self._copied = step


def courier_to(access: Access, launch: int, limit_s: float) -> BreakableCourier:
    """To a coordinator; its certificate is vouched for by the secret."""
    return BreakableCourier(
        access.host,
        access.port,
        access.secret,
        launch,
        name="",
        to_role=COORDINATOR,
        limit_s=limit_s,
        tls=bool(access.certificate),
    )


def _failure_of(act: Callable[[], None]) -> str:
    """Empty: it was done."""
    try:
        act()
    except (HoldfastError, OSError) as why:
        return str(why)
    return ""
