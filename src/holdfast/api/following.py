"""While one stands by on another machine: what only the coordinator has is copied from it.

Events by a thread of their own, all else by another one. Whatever cannot be had now is tried again;
a run can be taken over without.
"""

import threading
from dataclasses import replace
from pathlib import Path

from holdfast.addresses import parse_host_port
from holdfast.auth.ticket import Ticket
from holdfast.control.io.succession.copies import copied
from holdfast.control.io.succession.far_copies import PAUSE_S, Copier, courier_to
from holdfast.control.io.succession.run_journal import LeftBehind
from holdfast.errors import HoldfastError
from holdfast.observability.events import CheckpointSaved, Event, StepFinished, encode_event
from holdfast.observability.log import EVENTS_FILE
from holdfast.protocol.spec import Access

_LIMIT_S = 10.0  # of one question


class Following:
    """One coordinator, as long as it leads. ``far_checkpoints``: they are in its run directory."""

    def __init__(
        self,
        left: LeftBehind,
        ticket: Ticket,
        run_dir: Path,
        *,
        far_checkpoints: bool,
        before: "Following | None" = None,
    ) -> None:
        """``before``: of whoever led before. What that has copied stays until this one answers."""
        self.address = left.snapshot.address
        host, port = parse_host_port(self.address, "the journal: address")
        # It may be a standby itself, with a certificate that no ticket knows.
        access = replace(Access.by(ticket), host=host, port=port, is_standby=True)
        self._left, self._run_dir, self._far_checkpoints = left, run_dir, far_checkpoints
        self._access = access
        self.events: list[Event] = list(before.events) if before else []
        self.step: int = before.step if before else 0  # the last that is finished, from 1 on
        self._num_heard = 0  # events, of this coordinator
        self._trouble = ""  # why nothing was copied the last time
        self._copier = Copier(access, left, run_dir, before.copier if before else None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    @property
    def copier(self) -> Copier:
        return self._copier

    @property
    def trouble(self) -> str:
        return self._trouble or self._copier.trouble

    def start(self) -> None:
        self._thread.start()
        self._copier.start()

    def stop(self) -> None:
        """What is under way is left to itself: whoever takes over does not wait for it."""
        self._ended.set()
        self._copier.stop()

    def wait(self, limit_s: float) -> None:
        """After ``stop``: until nothing more is written."""
        self._copier.wait(limit_s)

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
                self._trouble = ""
            except (HoldfastError, OSError) as why:
                self._trouble = str(why)

    def _copy(self) -> None:
        courier = courier_to(self._access, self._left.facts.launch, _LIMIT_S)
        found = copied(courier, self._num_heard)
        if self._ended.is_set() or not found:
            return  # somebody counts on what there was
        if self._num_heard:
            self.events += found
        else:
            self.events = found
        self._num_heard += len(found)
        for event in found:
            if isinstance(event, StepFinished):
                self.step = event.step + 1
            elif isinstance(event, CheckpointSaved) and self._far_checkpoints:
                self._copier.want(event.step)
