"""The journal of one run: what is put into it with each snapshot, and what a successor reads.

A journal that cannot be written ends no run that is kept in its directory: only nobody could take
over from it. One that is kept elsewhere is waited for, since others may lead by then.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.control.journal.base import Journal
from holdfast.control.takeover.snapshot import RunSnapshot, from_record
from holdfast.errors import ConfigError, JournalAway, JournalError, JournalHeld, ProtocolError

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


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """By a coordinator that has not ended its run in order."""

    facts: RunFacts
    snapshot: RunSnapshot


class RunJournal:
    def __init__(
        self, journal: Journal, facts: RunFacts, warn: Callable[[str], None], *, waits: bool
    ) -> None:
        """``waits``: until it can be written."""
        self._journal, self._facts = journal, asdict(facts)
        self._warn, self._waits = warn, waits
        self._num_written, self._leads, self._has_warned = 0, False, False

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

    def write(self, record: Mapping[str, Any]) -> None:
        """Deposed: nothing that follows may be done."""
        if not self._leads:
            return  # nothing was opened yet that anybody could take over
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

    def _complain(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            then = "it is waited for" if self._waits else "nobody could take over from here"
            self._warn(f"the journal cannot be written: {why}; {then}")

    def close(self) -> None:
        self._journal.close()


def claim(journal: Journal, *, above: int) -> int:
    """The generation that leads now. ConfigError: somebody else does."""
    try:
        return journal.claim(above=above).generation
    except JournalHeld as why:
        raise ConfigError(f"{why}; end it first, if it hangs") from why


def left_behind(journal: Journal) -> LeftBehind | None:
    """None: nothing, or the run was ended in order. Whoever leads it may still do so."""
    try:
        records = journal.records()
        if not records:
            return None
        facts = RunFacts(**records[-1]["run"])
        snapshot = from_record(records[-1]["snapshot"])
    except (JournalError, ProtocolError, KeyError, TypeError):
        return None
    return None if snapshot.is_over else LeftBehind(facts, snapshot)
