"""While one stands by on another machine: what only the coordinator has is copied from it.

A thread of its own. Whatever cannot be had now is tried again; a run can be taken over without.
"""

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.addresses import parse_host_port
from holdfast.auth.handshake import COORDINATOR, JOINER
from holdfast.auth.ticket import Ticket
from holdfast.bundle.fetching import fetch
from holdfast.bundle.unpacking import cached, default_cache
from holdfast.control.io.succession.copies import copied
from holdfast.control.io.succession.run_journal import LeftBehind
from holdfast.errors import HoldfastError
from holdfast.files.courier import Courier
from holdfast.observability.events import (
    EVENTS_FILE,
    CheckpointSaved,
    Event,
    StepFinished,
    encode_event,
)
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import Access
from holdfast.storage.copied_states import copies_of, copy_checkpoint
from holdfast.storage.far import FarStates
from holdfast.storage.manifest import checkpoints

PAUSE_S = 0.3
_LIMIT_S = 10.0  # of one question
_BUNDLE_LIMIT_S, _FILE_LIMIT_S = 600.0, 1800.0


class Following:
    """One coordinator, as long as it leads. ``far_checkpoints``: they are in its run directory."""

    def __init__(
        self, left: LeftBehind, ticket: Ticket, run_dir: Path, *, far_checkpoints: bool
    ) -> None:
        host, port = parse_host_port(left.snapshot.address, "the journal: address")
        # It may be a standby itself, with a certificate that no ticket knows.
        self._access = replace(Access.by(ticket), host=host, port=port, is_standby=True)
        self._left, self._run_dir, self._far_checkpoints = left, run_dir, far_checkpoints
        self.events: list[Event] = []
        self.step = 0  # the last that is finished, from 1 on
        self.trouble = ""  # why nothing was copied the last time
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is under way is left to itself: whoever takes over does not wait for it."""
        self._ended.set()

    def write_down(self) -> None:
        """All events so far, where a run has them. OSError: it cannot be done."""
        events = list(self.events)
        if events:
            text = "".join(f"{encode_event(event)}\n" for event in events)
            part = self._run_dir / f".{EVENTS_FILE}.part"
            part.write_text(text)
            part.replace(self._run_dir / EVENTS_FILE)

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            try:
                self._copy()
                self.trouble = ""
            except (HoldfastError, OSError) as why:
                self.trouble = str(why)

    def _copy(self) -> None:
        self._copy_job()
        found = copied(self._courier(_LIMIT_S), len(self.events))
        if self._ended.is_set():
            return  # somebody counts on what there was
        self.events += found
        for event in found:
            if isinstance(event, StepFinished):
                self.step = event.step + 1
        if self._far_checkpoints:
            self._copy_newest(found)

    def _copy_job(self) -> None:
        bundle, cache = self._left.facts.bundle, default_cache(os.environ)
        if not bundle or cached(cache, bundle) is not None:
            return
        connection, _ = connect(self._access, JOINER, "", _LIMIT_S)
        try:
            fetch(connection, bundle, cache, _BUNDLE_LIMIT_S)
        finally:
            connection.close()

    def _copy_newest(self, found: list[Event]) -> None:
        saved = [event for event in found if isinstance(event, CheckpointSaved)]
        if saved:
            copies = copies_of(self._run_dir, self._left.snapshot.run_id)
            scratch = checkpoints(copies)
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            far = FarStates(self._courier(_FILE_LIMIT_S), lambda: scratch)
            with suppress(HoldfastError):  # there is a newer one by now, or will be
                copy_checkpoint(far, copies, saved[-1].step)

    def _courier(self, limit_s: float) -> Courier:
        access = self._access
        return Courier(
            access.host,
            access.port,
            access.secret,
            self._left.facts.launch,
            name="",
            to_role=COORDINATOR,
            limit_s=limit_s,
            tls=bool(access.certificate),
        )
