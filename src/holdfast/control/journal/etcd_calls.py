"""etcd as a journal uses it: keys, transactions, leases. Each call has a limit, and tries all
endpoints in turn until then.

A call whose answer was lost is made again: whoever calls must find out what the first has done.
"""

import base64
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_http import HttpAnswer, HttpLink
from holdfast.errors import JournalAway, JournalError
from holdfast.journal_address import JournalAddress

TRY_LIMIT_S = 1.0  # for one endpoint, if there is time: then the next is asked
_PAUSE_S = 0.05  # when all were asked in vain
# By the numbers that gRPC gives to errors.
_NOT_FOUND, _UNAUTHENTICATED = 5, 16
_FOR_A_WHILE = {1, 2, 4, 8, 10, 13, 14}  # no leader, too slow, no room, ...

_Json = dict[str, Any]


class NoSuchLease(JournalError):
    pass


class EtcdEntry(NamedTuple):
    key: str
    value: bytes
    created: int  # revisions of the store
    modified: int


class TxnAnswer(NamedTuple):
    succeeded: bool
    revision: int  # of the store, right after it
    found: list[list[EtcdEntry]]  # what each range among its operations has


class EtcdCalls:
    """For one thread."""

    def __init__(
        self, at: JournalAddress, access: EtcdAccess, try_limit_s: float = TRY_LIMIT_S
    ) -> None:
        context = access.context() if at.tls else None
        self._at, self._access, self._try_limit_s = at, access, try_limit_s
        self._links = [HttpLink(host, port, context) for host, port in at.endpoints]
        self._token = ""

    def sibling(self, try_limit_s: float) -> "EtcdCalls":
        """For another thread; it need not prove again who we are."""
        other = EtcdCalls(self._at, self._access, try_limit_s)
        other._token = self._token
        return other

    def txn(
        self,
        compare: Sequence[_Json],
        success: Sequence[_Json],
        failure: Sequence[_Json] = (),
        *,
        limit_s: float,
    ) -> TxnAnswer:
        body = {"compare": [*compare], "success": [*success], "failure": [*failure]}
        answer = self._call("kv/txn", body, limit_s)
        ranges = [
            each["response_range"] for each in answer.get("responses", []) if _has_range(each)
        ]
        found = [[_entry(kv) for kv in each.get("kvs", [])] for each in ranges]
        return TxnAnswer(bool(answer.get("succeeded")), int(answer["header"]["revision"]), found)

    def page(self, first: str, end: str, revision: int, num: int, limit_s: float) -> "Page":
        """Entries from key ``first`` on, before ``end``, as they were at a revision; 0: now."""
        body = {
            "key": _encoded(first),
            "range_end": _encoded(end),
            "revision": str(revision),
            "limit": str(num),
        }
        answer = self._call("kv/range", body, limit_s)
        entries = [_entry(kv) for kv in answer.get("kvs", [])]
        return Page(entries, bool(answer.get("more")), int(answer["header"]["revision"]))

    def grant(self, ttl_s: int, limit_s: float) -> str:
        """A lease."""
        return str(self._call("lease/grant", {"TTL": str(ttl_s)}, limit_s)["ID"])

    def keep_alive(self, lease: str, limit_s: float) -> bool:
        """False: it has run out."""
        answer = self._call("lease/keepalive", {"ID": lease}, limit_s)
        return int(answer["result"].get("TTL", 0)) > 0

    def revoke(self, lease: str, limit_s: float) -> None:
        self._call("lease/revoke", {"ID": lease}, limit_s)

    def close(self) -> None:
        for link in self._links:
            link.close()

    # --- any call ---

    def _call(self, path: str, body: _Json, limit_s: float) -> _Json:
        deadline_s = time.monotonic() + limit_s
        num_tries, why, has_said = 0, "", False
        while True:
            if num_tries and num_tries % len(self._links) == 0:
                time.sleep(max(0.0, min(_PAUSE_S, deadline_s - time.monotonic())))
            left_s = deadline_s - time.monotonic()
            if num_tries and left_s <= 0:
                raise JournalAway(f"{self._at}: no answer within {limit_s:.2g} s ({why})")
            num_tries += 1
            try:
                self._authenticate(time.monotonic() + max(left_s, 0.01) / 2)
                try_until_s = time.monotonic() + min(self._try_limit_s, max(left_s, 0.01))
                return self._on_first(path, body, try_until_s)
            except (OSError, _Later) as error:
                if isinstance(error, _Later) or not has_said:  # a word is worth more than silence
                    why, has_said = f"{self._links[0]}: {error}", isinstance(error, _Later)
                self._links.append(self._links.pop(0))

    def _on_first(self, path: str, body: _Json, deadline_s: float) -> _Json:
        answer = self._post(path, body, deadline_s)
        if answer.status == 200 and "error" not in answer.content:
            return _checked(answer.content)
        code, words = _error(answer)
        if code == _UNAUTHENTICATED and self._token:  # tokens do not last
            self._token = ""
            raise _Later(words)
        if code in _FOR_A_WHILE:
            raise _Later(words)
        if code == _NOT_FOUND:  # nothing else that we name must be there
            raise NoSuchLease(f"{self._at}: {words}")
        raise JournalError(f"{self._at}: {words}")

    def _post(self, path: str, body: _Json, deadline_s: float) -> HttpAnswer:
        headers = {"Authorization": self._token} if self._token else {}
        return self._links[0].post(f"/v3/{path}", body, headers, deadline_s)

    def _authenticate(self, deadline_s: float) -> None:
        """Has half of the time there is: etcd makes passwords slow to check."""
        if not self._access.user or self._token:
            return
        who = {"name": self._access.user, "password": self._access.password}
        answer = self._post("auth/authenticate", who, deadline_s)
        if answer.status == 200:
            self._token = str(_checked(answer.content).get("token", ""))
            return
        code, words = _error(answer)
        if code in _FOR_A_WHILE:
            raise _Later(words)
        raise JournalError(f"{self._at}: {words}; set ETCDCTL_USER and ETCDCTL_PASSWORD")


class Page(NamedTuple):
    entries: list[EtcdEntry]
    more: bool
    revision: int


class _Later(Exception):
    """This endpoint cannot now."""


def _checked(content: _Json) -> _Json:
    """Every answer of etcd has a header; one of a stream has it one level below."""
    inner = content.get("result", content)
    if not isinstance(inner, dict) or not isinstance(inner.get("header"), dict):
        raise OSError("no answer of etcd")
    return content


def _error(answer: HttpAnswer) -> tuple[int, str]:
    content = answer.content
    inner = content.get("error")
    if isinstance(inner, dict):  # of a call whose answer is a stream
        content = inner
    code = content.get("code", content.get("grpc_code", 2))
    words = content.get("message") or content.get("error") or f"HTTP status {answer.status}"
    return (code if isinstance(code, int) else 2), str(words)[:200]


# --- the words of a transaction ---


def is_created_at(key: str, revision: int) -> _Json:
    """0: there is no such key."""
    return _compared(key, "CREATE", "create_revision", revision)


def is_modified_at(key: str, revision: int) -> _Json:
    return _compared(key, "MOD", "mod_revision", revision)


def put(key: str, value: bytes, lease: str = "0") -> _Json:
    content = {"key": _encoded(key), "value": base64.b64encode(value).decode(), "lease": lease}
    return {"request_put": content}


def get(key: str) -> _Json:
    return {"request_range": {"key": _encoded(key)}}


def last_of(first: str, end: str) -> _Json:
    """The entry with the highest key, and one only."""
    order = {"sort_order": "DESCEND", "sort_target": "KEY", "limit": "1"}
    return {"request_range": {"key": _encoded(first), "range_end": _encoded(end), **order}}


def delete(first: str, end: str | None = None) -> _Json:
    """All from the first key on, before ``end``; the first alone without it."""
    keys = {"key": _encoded(first)} | ({} if end is None else {"range_end": _encoded(end)})
    return {"request_delete_range": keys}


def _compared(key: str, target: str, field: str, revision: int) -> _Json:
    what = {"key": _encoded(key), "target": target, "result": "EQUAL", field: str(revision)}
    return what


def _has_range(response: _Json) -> bool:
    return "response_range" in response


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _entry(kv: _Json) -> EtcdEntry:
    return EtcdEntry(
        base64.b64decode(kv["key"]).decode(errors="replace"),
        base64.b64decode(kv.get("value", "")),
        int(kv["create_revision"]),
        int(kv["mod_revision"]),
    )
