"""The promises of a journal, whatever keeps it.

One process at a time leads: the one that has claimed the newest generation. Only it may append.
For one thread of that process; ``leads`` may be asked by any.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import JournalAway, JournalHeld

JournalRecord = Mapping[str, Any]  # what JSON can hold

APPEND_LIMIT_S = 5.0  # for one append or claim, unless the caller says otherwise
POLL_S = 0.1  # how often one who waits looks whether nobody leads


@dataclass(frozen=True, slots=True)
class Claim:
    generation: int  # above all that were claimed before
    took_over_from: str  # who led before, in words; empty: nobody


class Journal(Protocol):
    def claim(self, *, above: int = 0, limit_s: float = APPEND_LIMIT_S) -> Claim:
        """Lead, as the next generation, which is higher than ``above`` too.

        JournalHeld: somebody leads, or was faster. JournalDamaged: see ``records``.
        JournalAway: nothing is known; it may be tried again.
        """
        ...

    def records(self) -> list[dict[str, Any]]:
        """All that were appended, in order, from the last snapshot on; also for who does not lead.

        What a crash has left half written at the end is dropped: nobody has acted on it.
        JournalDamaged: a record that was acted on cannot be read.
        """
        ...

    def append(self, record: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        """Durable when it returns.

        Deposed: somebody else leads; for good. JournalAway: not within the limit, which may be
        tried again. A record that was refused can be among the records later only if nothing was
        appended after it.
        """
        ...

    def append_all(
        self, records: Sequence[JournalRecord], *, limit_s: float = APPEND_LIMIT_S
    ) -> None:
        """All of them or none, for the price of one."""
        ...

    def compact(self, snapshot: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        """The snapshot is the first record from now on; the older ones are gone. All or nothing."""
        ...

    def renew(self) -> None:
        """Have more time to lead asked for now. A thread does so by itself: nobody has to. Does
        not wait for the answer. Deposed: somebody else leads; for good."""
        ...

    def leads(self, now_s: float) -> bool:
        """At a time of the monotonic clock. Never waits.

        False as soon as the lease was not renewed in time, even if the one who renews it hangs. It
        may be true again later, if nobody has led in between.
        """
        ...

    def close(self) -> None:
        """Give up the lead, if we have it: a successor need not wait for the lease to end."""
        ...


def wait_for_leadership(journal: Journal, limit_s: float, *, above: int = 0) -> Claim | None:
    """For a standby: claim as soon as nobody leads; None: somebody did all the time."""
    deadline_s = time.monotonic() + limit_s
    while True:
        left_s = max(deadline_s - time.monotonic(), POLL_S)
        try:
            return journal.claim(above=above, limit_s=min(left_s, APPEND_LIMIT_S))
        except (JournalHeld, JournalAway):  # nobody may lead who cannot write
            if time.monotonic() + POLL_S > deadline_s:
                return None
        time.sleep(POLL_S)
