"""A journal in etcd: a successor on any machine finds it, and takes over when a lease has run out.

An append is a transaction that etcd refuses unless its writer leads at that moment. Each has the
next number: one whose answer was lost is written again to the same place.
"""

import contextlib
import json
import secrets
import time
import zlib
from collections.abc import Sequence
from typing import Any

from holdfast.control.journal.base import APPEND_LIMIT_S, Claim, JournalRecord
from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_calls import (
    EtcdCalls,
    EtcdEntry,
    delete,
    get,
    is_modified_at,
    last_of,
    put,
)
from holdfast.control.journal.etcd_lead import (
    LeadKeeper,
    LeadKeys,
    Seen,
    Term,
    give_up,
    take_lead,
)
from holdfast.control.journal.frames import compact_json
from holdfast.errors import Deposed, JournalAway, JournalDamaged, JournalError
from holdfast.journal_address import JournalAddress

PIECE_BYTES = 128 << 10  # of one value; what is larger is put in pieces first
_PAGE = 24  # entries that are read at once: of that size, below what a message may have
CLOSE_LIMIT_S = 1.0
_REGAIN_PAUSE_S = 0.02
_DIGITS = 12


class EtcdJournal:
    def __init__(
        self, at: JournalAddress, name: str, *, lease_s: float, access: EtcdAccess
    ) -> None:
        """``name``: of this process, for those who find that it leads."""
        self._at, self._name, self._lease_s = at, name, lease_s
        self._lead_keys = LeadKeys.of(at.prefix)
        self._calls = EtcdCalls(at, access)
        self._keeper: LeadKeeper | None = None
        self._next = 0  # number of the next append
        self._in_the_way = 0  # revision of what an append that failed has left there

    def claim(self, *, above: int = 0, limit_s: float = APPEND_LIMIT_S) -> Claim:
        self.close()
        asked_s, keys = time.monotonic(), self._lead_keys
        term, before = take_lead(
            self._calls, keys, self._name, above=above, lease_s=self._lease_s, limit_s=limit_s
        )
        calls = self._calls.sibling(self._lease_s / 4)
        keeper = LeadKeeper(calls, keys, term, lease_s=self._lease_s, asked_s=asked_s)
        self._keeper = keeper
        try:
            keeper.start()
            self._find_end(limit_s)
        except (JournalError, RuntimeError) as why:
            self.close()
            if isinstance(why, RuntimeError):
                raise JournalAway(f"{self._at}: no thread to renew the lease with") from why
            raise
        return Claim(term.generation, before.holder)

    def _find_end(self, limit_s: float) -> None:
        answer = self._calls.txn([], [last_of(*self._all_of("records"))], limit_s=limit_s)
        last = answer.found[0]
        self._next = self._number_of(last[0]) + 1 if last else 0
        self._in_the_way = 0

    def append(self, record: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        self.append_all([record], limit_s=limit_s)

    def append_all(
        self, records: Sequence[JournalRecord], *, limit_s: float = APPEND_LIMIT_S
    ) -> None:
        self._write(records, is_snapshot=False, deadline_s=time.monotonic() + limit_s)

    def compact(self, snapshot: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        self._write([snapshot], is_snapshot=True, deadline_s=time.monotonic() + limit_s)

    def renew(self) -> None:
        self._term()
        if self._keeper is not None:
            self._keeper.wake()

    def leads(self, now_s: float) -> bool:
        keeper = self._keeper
        return keeper is not None and keeper.leads(now_s)

    def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        term = keeper.stop(CLOSE_LIMIT_S) if keeper is not None else None
        if term is not None:
            with contextlib.suppress(JournalError):
                give_up(self._calls, self._lead_keys, term, CLOSE_LIMIT_S)
        self._calls.close()

    # --- writing ---

    def _write(
        self, records: Sequence[JournalRecord], *, is_snapshot: bool, deadline_s: float
    ) -> None:
        content: dict[str, Any] = {
            "generation": self._term().generation,
            "snapshot": is_snapshot,
            "records": [dict(record) for record in records],
        }
        value = compact_json(content)
        if len(value) > PIECE_BYTES:
            content["records"] = self._put_pieces(compact_json(content["records"]), deadline_s)
            value = compact_json(content)
        operations = [put(self._key("records", self._next), value)]
        if is_snapshot:
            operations += [
                delete(self._all_of(kind)[0], self._key(kind, self._next))
                for kind in ("records", "pieces")
            ]
        self._put_next(operations, deadline_s)

    def _put_next(self, operations: Sequence[dict[str, Any]], deadline_s: float) -> None:
        """It gets the next number. What is there already is ours, of an append that failed or
        whose answer was lost: it is replaced."""
        key = self._key("records", self._next)
        while True:
            free = is_modified_at(key, self._in_the_way)
            found = self._as_leader([free], operations, [get(key)], deadline_s)
            if found is None:
                break
            self._in_the_way = found[0].modified if found else 0
        self._next, self._in_the_way = self._next + 1, 0

    def _put_pieces(self, data: bytes, deadline_s: float) -> dict[str, Any]:
        """They count for nothing until the value that names them is there."""
        name = secrets.token_hex(8)  # what a failed append has put stays as it is
        for number, at in enumerate(range(0, len(data), PIECE_BYTES)):
            key = f"{self._key('pieces', self._next)}/{name}/{number:04d}"
            self._as_leader([], [put(key, data[at : at + PIECE_BYTES])], [], deadline_s)
        return {"pieces": name, "crc": zlib.crc32(data)}

    def _as_leader(
        self,
        compare: Sequence[dict[str, Any]],
        success: Sequence[dict[str, Any]],
        failure: Sequence[dict[str, Any]],
        deadline_s: float,
    ) -> list[EtcdEntry] | None:
        """None: done. Else what was found instead, by us as leader."""
        while True:
            term, keys = self._term(), self._lead_keys
            answer = self._calls.txn(
                [*term.guards(keys), *compare],
                success,
                [*keys.read(), *failure],
                limit_s=max(0.01, deadline_s - time.monotonic()),
            )
            if answer.succeeded:
                return None
            seen = Seen.of(answer, keys)
            if seen.generation_revision != term.generation_revision:
                raise self._lost(seen, term)
            if seen.leader is not None and seen.leader.created == term.leader_revision:
                return answer.found[2]
            self._await_lease(term, deadline_s)

    def _await_lease(self, term: Term, deadline_s: float) -> None:
        """It has run out, and nobody has come: the keeper takes it anew."""
        if self._keeper is not None:
            self._keeper.wake()
        while self._term() is term:
            if time.monotonic() > deadline_s:
                raise JournalAway(f"{self._at}: the lease has run out and was not had again")
            time.sleep(_REGAIN_PAUSE_S)

    def _term(self) -> Term:
        term = self._keeper.term if self._keeper is not None else None
        if term is None:
            raise Deposed(f"{self._at}: this process does not lead the run")
        return term

    def _lost(self, seen: Seen, term: Term) -> JournalError:
        if self._keeper is not None:
            self._keeper.lose()
        if seen.generation < term.generation:
            return JournalDamaged(f"{self._at}: was removed while the run used it")
        newest = f"launch {seen.generation} leads the run"
        return Deposed(f"{self._at}: {newest}, and this is {term.generation}")

    # --- reading ---

    def records(self) -> list[dict[str, Any]]:
        """As of one moment, from the last snapshot on."""
        contents: list[tuple[EtcdEntry, dict[str, Any]]] = []
        entries, revision = self._entries(*self._all_of("records"), 0)
        for entry in entries:
            content = self._content(entry)
            if content["snapshot"]:
                contents.clear()
            contents.append((entry, content))
        return [each for entry, content in contents for each in self._of(entry, content, revision)]

    def _of(self, entry: EtcdEntry, content: dict[str, Any], revision: int) -> list[dict[str, Any]]:
        records = content["records"]
        if isinstance(records, list):
            return records
        first = f"{self._key('pieces', self._number_of(entry))}/{records['pieces']}/"
        pieces, _ = self._entries(first, _after(first), revision)
        data = b"".join(piece.value for piece in pieces)
        if zlib.crc32(data) != records["crc"]:
            raise self._damaged(entry)
        found: list[dict[str, Any]] = json.loads(data)
        return found

    def _entries(self, first: str, end: str, revision: int) -> tuple[list[EtcdEntry], int]:
        """And the revision at which all of them were read."""
        found: list[EtcdEntry] = []
        while True:
            page = self._calls.page(first, end, revision, _PAGE, APPEND_LIMIT_S)
            revision = revision or page.revision
            found += page.entries
            if not page.more:
                return found, revision
            first = found[-1].key + "\0"

    def _content(self, entry: EtcdEntry) -> dict[str, Any]:
        try:
            content = json.loads(entry.value)
            if content.keys() >= {"snapshot", "records"}:
                return dict(content)
        except (AttributeError, ValueError) as why:
            raise self._damaged(entry) from why
        raise self._damaged(entry)

    def _damaged(self, entry: EtcdEntry) -> JournalDamaged:
        return JournalDamaged(
            f"etcd key {entry.key}: is damaged; restore etcd from a snapshot, or choose another "
            "prefix and resume from the last checkpoint"
        )

    # --- keys ---

    def _key(self, kind: str, number: int) -> str:
        return f"{self._at.prefix}/{kind}/{number:0{_DIGITS}d}"

    def _all_of(self, kind: str) -> tuple[str, str]:
        first = f"{self._at.prefix}/{kind}/"
        return first, _after(first)

    def _number_of(self, entry: EtcdEntry) -> int:
        digits = entry.key.rpartition("/")[2]
        if not digits.isdecimal():
            raise self._damaged(entry)
        return int(digits)


def _after(prefix: str) -> str:
    """The first key that does not begin with it, which ends with a slash."""
    return f"{prefix[:-1]}0"
