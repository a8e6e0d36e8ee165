"""Who leads, by keys in etcd: taking the lead, keeping it, and knowing when it is lost.

``PREFIX/generation`` stays for ever and rises by one with each leader; ``PREFIX/leader`` goes away
with its lease. Whoever leads writes only if both are as it has put them.
"""

import contextlib
import json
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast.control.journal.etcd_calls import (
    EtcdCalls,
    EtcdEntry,
    NoSuchLease,
    TxnAnswer,
    delete,
    get,
    is_created_at,
    is_modified_at,
    put,
)
from holdfast.control.journal.frames import compact_json
from holdfast.errors import JournalAway, JournalDamaged, JournalError, JournalHeld

_RENEWALS = 4  # in the time of a lease
_MARGIN = 0.05  # of a lease: by so much a clock may run faster than another


class LeadKeys(NamedTuple):
    generation: str
    leader: str

    @classmethod
    def of(cls, prefix: str) -> "LeadKeys":
        return cls(f"{prefix}/generation", f"{prefix}/leader")

    def read(self) -> list[dict[str, Any]]:
        return [get(self.generation), get(self.leader)]


@dataclass(frozen=True, slots=True)
class Term:
    """One's time as leader, and what proves it."""

    generation: int
    generation_revision: int
    leader_revision: int
    lease: str
    value: bytes  # of the leader's key: no other process has the same

    def guards(self, keys: LeadKeys) -> list[dict[str, Any]]:
        return [
            is_modified_at(keys.generation, self.generation_revision),
            is_created_at(keys.leader, self.leader_revision),
        ]


class Seen(NamedTuple):
    """What the two keys say."""

    generation: int
    generation_revision: int  # 0: there is none yet
    holder: str  # the last one that has not ended in good order
    leader: EtcdEntry | None

    @classmethod
    def of(cls, answer: TxnAnswer, keys: LeadKeys) -> "Seen":
        generations, leaders = answer.found[:2]
        leader = leaders[0] if leaders else None
        if not generations:
            return cls(0, 0, "", leader)
        try:
            said = json.loads(generations[0].value)
            number, holder = int(said["generation"]), str(said["holder"])
        except (KeyError, TypeError, ValueError) as why:
            raise JournalDamaged(
                f"etcd key {keys.generation}: holds something else; choose another prefix"
            ) from why
        return cls(number, generations[0].modified, holder, leader)


def take_lead(
    calls: EtcdCalls, keys: LeadKeys, name: str, *, above: int, lease_s: float, limit_s: float
) -> tuple[Term, Seen]:
    """And what was there before. JournalHeld: somebody leads."""
    deadline_s = time.monotonic() + limit_s
    while True:
        left_s = max(0.01, deadline_s - time.monotonic())
        try:
            return _try_to_lead(calls, keys, name, above=above, lease_s=lease_s, limit_s=left_s)
        except NoSuchLease as why:  # this process slept until it had run out
            if time.monotonic() > deadline_s:
                raise JournalAway(f"etcd {keys.leader}: the new lease has run out") from why


def _try_to_lead(
    calls: EtcdCalls, keys: LeadKeys, name: str, *, above: int, lease_s: float, limit_s: float
) -> tuple[Term, Seen]:
    deadline_s = time.monotonic() + limit_s
    before = Seen.of(calls.txn([], keys.read(), limit_s=limit_s), keys)
    if before.leader is not None:
        raise _held(before, keys)
    left_s = max(0.01, deadline_s - time.monotonic())
    lease = calls.grant(math.ceil(lease_s), left_s)
    number = max(before.generation, above) + 1
    value = compact_json({"holder": f"launch {number}, {name}", "nonce": secrets.token_hex(8)})
    draft = Term(number, before.generation_revision, 0, lease, value)
    left_s = max(0.01, deadline_s - time.monotonic())
    term, now = _put_leader(calls, keys, draft, left_s, generation=_generation_value(number, name))
    if term is None:
        with contextlib.suppress(JournalError):
            calls.revoke(lease, left_s)
        raise _held(now, keys)
    return term, before


def _put_leader(
    calls: EtcdCalls, keys: LeadKeys, draft: Term, limit_s: float, *, generation: bytes | None
) -> tuple[Term | None, Seen]:
    """With a new generation, or with the one that is still ours. None: somebody was faster."""
    puts = [put(keys.leader, draft.value, draft.lease)]
    if generation is not None:
        puts.append(put(keys.generation, generation))
    guards = [
        is_modified_at(keys.generation, draft.generation_revision),
        is_created_at(keys.leader, 0),
    ]
    answer = calls.txn(guards, [*puts, *keys.read()], keys.read(), limit_s=limit_s)
    now = Seen.of(answer, keys)
    # The first answer may have been lost: then it is our own key that is in the way.
    if now.leader is None or now.leader.value != draft.value:
        return None, now
    leads = replace(
        draft, generation_revision=now.generation_revision, leader_revision=now.leader.created
    )
    return leads, now


def _generation_value(number: int, name: str) -> bytes:
    return compact_json({"generation": number, "holder": name and f"launch {number}, {name}"})


def _held(seen: Seen, keys: LeadKeys) -> JournalHeld:
    holder = seen.holder or "another process"
    return JournalHeld(f"etcd {keys.leader}: {holder} leads this run", holder, seen.generation)


class LeadKeeper:
    """Renews the lease, in a thread of its own; takes it anew if it ran out and nobody came."""

    def __init__(
        self,
        calls: EtcdCalls,
        keys: LeadKeys,
        term: Term,
        *,
        lease_s: float,
        asked_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``calls``: for the thread alone. ``asked_s``: when the lease was asked for."""
        self._calls, self._keys, self._lease_s, self._clock = calls, keys, lease_s, clock
        self._until_s = asked_s + lease_s * (1 - _MARGIN)
        self.term: Term | None = term  # None: lost for good
        self._ends, self._wake = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leads(self, now_s: float) -> bool:
        return self.term is not None and now_s < self._until_s

    def wake(self) -> None:
        self._wake.set()

    def lose(self) -> None:
        """Somebody else leads: for good."""
        self.term = None
        self.wake()

    def stop(self, limit_s: float) -> Term | None:
        """No renewal begins after it."""
        self._ends = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        term, self.term = self.term, None
        return term

    def _run(self) -> None:
        while not self._ends and self.term is not None:
            with contextlib.suppress(JournalError):  # away: tried again as long as it may help
                self._renew(self.term)
            self._wake.wait(self._lease_s / _RENEWALS)
            self._wake.clear()
        self._calls.close()

    def _renew(self, term: Term) -> None:
        asked_s, limit_s = self._clock(), self._lease_s / 2
        try:
            lives = self._calls.keep_alive(term.lease, limit_s)
        except NoSuchLease:
            lives = False
        if not lives:
            asked_s = self._clock()
            draft = replace(term, lease=self._calls.grant(math.ceil(self._lease_s), limit_s))
            again, now = _put_leader(self._calls, self._keys, draft, limit_s, generation=None)
            if again is None:
                self._until_s = -math.inf
                if now.generation_revision != term.generation_revision:
                    self.lose()
                return
            if self.term is None:
                return
            self.term = again
        self._until_s = asked_s + self._lease_s * (1 - _MARGIN)


def give_up(calls: EtcdCalls, keys: LeadKeys, term: Term, limit_s: float) -> None:
    """In good order: the next one need not wait, nor wonder."""
    nobody = put(keys.generation, _generation_value(term.generation, ""))
    calls.txn(term.guards(keys), [delete(keys.leader), nobody], limit_s=limit_s)
    calls.revoke(term.lease, limit_s)
