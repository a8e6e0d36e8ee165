"""The journal of one run: what is put into it with each snapshot, and what a successor reads.

A journal that cannot be written ends no run that is kept in its directory: only nobody could take
over from it. One that is kept elsewhere is waited for, since others may lead by then.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.control.journal.base import Journal
from holdfast.control.takeover.snapshot import RunSnapshot, from_record
from holdfast.errors import (
    ConfigError,
    JournalAway,
    JournalDamaged,
    JournalError,
    JournalHeld,
    ProtocolError,
)

END_LIMIT_S = 5.0  # besides the limit of the call that is under way
_PAUSE_S = 0.05
_NUM_RECORDS = 64  # then the older ones are dropped: each is all there is to know


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change, and only the launcher knows."""

    launch: int  # the first of the coordinators that take over from each other
    settings: Mapping[str, Any]
    job: str  # as workers are told of it
    job_sha256: str
    origin: str  # for whoever resumes the run
    faults: list[str]
    bundle: str = ""  # SHA-256 of what other machines are sent of the job; empty: nothing


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """By a coordinator that has not ended its run in order."""

    facts: RunFacts
    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True)
class Led:
    """A journal that is ours already, and as which generation."""

    journal: Journal
    generation: int


class RunJournal:
    def __init__(
        self, journal: Journal, facts: RunFacts, warn: Callable[[str], None], *, waits: bool
    ) -> None:
        """``waits``: until it can be written."""
        self._journal, self._facts = journal, asdict(facts)
        self._warn, self._waits = warn, waits
        self._num_written, self._leads, self._has_warned = 0, False, False
        self._is_given_up = False  # the run ends without it
        self._until_s = math.inf  # it is waited for

    def hurry(self) -> None:
        """The run is to end: it is waited for a little longer, and after a second word no more."""
        now_s = time.monotonic()
        self._until_s = now_s + END_LIMIT_S if self._until_s == math.inf else now_s

    def lead(self, generation: int) -> None:
        """ConfigError: somebody else does."""
        if not self._leads:
            claimed = claim(self._journal, above=generation - 1)
            if claimed != generation:
                raise ConfigError(f"launch {claimed - 1} of this run has begun meanwhile")
            self._leads = True

    def leads_already(self) -> None:
        """It was claimed before."""
        self._leads = True

    def leads(self, now_s: float) -> bool:
        """For sure; one that has not begun to lead has nobody beside it."""
        return not self._leads or self._journal.leads(now_s)

    def check(self) -> None:
        """Deposed: another one leads. Else nobody does, as far as is known."""
        if self._leads and not self._journal.leads(time.monotonic()):
            self._journal.renew()

    def confirm(self) -> None:
        """As ``check``, but waits until it is known for sure. JournalAway: in vain."""
        while self._leads and not self._journal.leads(time.monotonic()):
            self._journal.renew()
            self._stop_waiting("nobody knows who leads the run")
            time.sleep(_PAUSE_S)

    def write(self, record: Mapping[str, Any]) -> None:
        """Deposed: nothing that follows may be done. JournalAway: it was waited for in vain."""
        if not self._leads or self._is_given_up:
            return  # nobody could take over yet, or any more
        whole = {"run": self._facts, "snapshot": record}
        while True:
            try:
                if self._num_written % _NUM_RECORDS:
                    self._journal.append(whole)
                else:
                    self._journal.compact(whole)
                self._num_written += 1
                return
            except JournalAway as why:
                self._complain(str(why))
                if not self._waits:
                    return
                self._stop_waiting(str(why))

    def _stop_waiting(self, why: str) -> None:
        if time.monotonic() >= self._until_s:
            self._is_given_up = True
            raise JournalAway(
                f"the run ends without its journal ({why}); resume it from its newest checkpoint"
            )

    def _complain(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            then = "it is waited for" if self._waits else "nobody could take over from here"
            self._warn(f"the journal cannot be written: {why}; {then}")

    def end(self) -> None:
        """Everyone was told that the run is over: there is nothing to take over."""
        if self._leads:
            with suppress(JournalError):  # then a successor finds nobody
                self._journal.append({"ended": True})

    def close(self) -> None:
        self._journal.close()


def claim(journal: Journal, *, above: int) -> int:
    """The generation that leads now. ConfigError: somebody else does."""
    try:
        return journal.claim(above=above).generation
    except JournalHeld as why:
        raise ConfigError(f"{why}; end it first, if it hangs") from why


def left_behind(journal: Journal) -> LeftBehind | None:
    """None: nothing, or the run was ended in order. Whoever leads it may still do so.

    Of a run that has failed nothing is left: it goes on from its checkpoint, with new workers. One
    that is finished may have workers that do not know it. JournalAway: nobody knows.
    JournalDamaged: it cannot be read, or was written by another version of Holdfast.
    """
    records = journal.records()
    if not records or records[-1].get("ended"):
        return None
    try:
        facts = RunFacts(**records[-1]["run"])
        snapshot = from_record(records[-1]["snapshot"])
    except (ProtocolError, KeyError, TypeError) as why:
        raise JournalDamaged(
            "the journal of the run cannot be read: it is damaged, or was written by another "
            "version of Holdfast"
        ) from why
    return None if snapshot.phase == "FAILED" else LeftBehind(facts, snapshot)
