"""A stand-in for etcd's JSON gateway, in this process: the calls that a journal makes, and faults.

Its answers are those of etcd 3.4; tests marked wide put the same questions to a real one. Leases
run out by a clock that tests move.
"""

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["FakeEtcd", str], str]  # path -> one of FAULTS; empty: none
LOST_ANSWER, REFUSED, HANGS, DRIBBLES, NO_TOKEN, NO_ETCD = (
    *("lost answer", "refused", "hangs", "dribbles"),
    *("no token", "no etcd"),
)
NO_LEADER = {"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: no leader"}
INVALID = {"error": "etcdserver: invalid auth token", "code": 16}
WRONG = {"error": "etcdserver: authentication failed, invalid user ID or password", "code": 3}
NO_LEASE = {"error": "etcdserver: requested lease not found", "code": 5}


class FakeEtcd:
    """Keys with their values and revisions; one at a time."""

    def __init__(self) -> None:
        self.keys: dict[bytes, dict[str, Any]] = {}
        self.asked = Counter[str]()
        self.fault: Fault = lambda fake, path: ""
        self.password = ""
        self.ahead_s = 0.0  # of the real clock
        self.asleep: frozenset[str] = frozenset()  # leases whose holder renews nothing
        self.ends = threading.Event()  # whoever hangs is let go
        self._revision, self._token = 1, 0
        self._leases: dict[str, tuple[float, int]] = {}  # until when, and its length
        self._lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        """An error has a code."""
        with self._lock:
            self._expire()
            if path == "auth/authenticate":
                if body["password"] != self.password:
                    return WRONG
                self._token += 1
                return {"header": self._header(), "token": f"token.{self._token}"}
            if self.password and token != f"token.{self._token}":
                return INVALID
            answer: dict[str, Any] = getattr(self, path.replace("/", "_"))(body)
            return answer

    def forget_tokens(self) -> None:
        self._token += 1

    def revoke_all(self) -> None:
        """As if all had run out."""
        with self._lock:
            self._leases = {lease: (0.0, ttl) for lease, (_, ttl) in self._leases.items()}
            self._expire()

    def put_to_sleep(self) -> None:
        """Whoever holds a lease now."""
        with self._lock:
            self.asleep = frozenset(self._leases)

    # --- calls ---

    def lease_grant(self, body: dict[str, Any]) -> dict[str, Any]:
        lease = str(1000 + self.asked["lease/grant"])
        self._leases[lease] = self._now_s() + int(body["TTL"]), int(body["TTL"])
        return {"header": self._header(), "ID": lease, "TTL": body["TTL"]}

    def lease_keepalive(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["ID"] in self.asleep:
            return NO_LEADER
        _, ttl = self._leases.get(body["ID"], (0, 0))
        if ttl:
            self._leases[body["ID"]] = self._now_s() + ttl, ttl
        left = {"TTL": str(ttl)} if ttl else {}
        return {"result": {"header": self._header(), "ID": body["ID"], **left}}

    def lease_revoke(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["ID"] not in self._leases:
            return NO_LEASE
        self._leases[body["ID"]] = 0.0, 0
        self._expire()
        return {"header": self._header()}

    def kv_range(self, body: dict[str, Any]) -> dict[str, Any]:
        found = [self.keys[key] for key in self._within(body)]
        if body.get("sort_order") == "DESCEND":
            found.reverse()
        limit = int(body.get("limit", 0)) or len(found)
        more = {"more": True} if len(found) > limit else {}
        return {"header": self._header(), "kvs": found[:limit], "count": str(len(found)), **more}

    def kv_txn(self, body: dict[str, Any]) -> dict[str, Any]:
        good = all(map(self._holds, body["compare"]))
        operations = body["success"] if good else body["failure"]
        if any(self._lease_of(each) not in ("0", *self._leases) for each in operations):
            return NO_LEASE
        if any({"request_put", "request_delete_range"} & each.keys() for each in operations):
            self._revision += 1
        responses = [self._done(each) for each in operations]
        succeeded = {"succeeded": True} if good else {}
        return {"header": self._header(), "responses": responses, **succeeded}

    # --- inside ---

    def _done(self, operation: dict[str, Any]) -> dict[str, Any]:
        ((kind, body),) = operation.items()
        if kind == "request_put":
            self._put(body)
            return {"response_put": {}}
        if kind == "request_delete_range":
            for key in self._within(body):
                del self.keys[key]
            return {"response_delete_range": {}}
        return {"response_range": self.kv_range(body)}

    def _put(self, body: dict[str, Any]) -> None:
        key, revision = base64.b64decode(body["key"]), str(self._revision)
        before = self.keys.get(key, {"create_revision": revision})
        self.keys[key] = {
            "key": body["key"],
            "value": body["value"],
            "lease": body["lease"],
            "create_revision": before["create_revision"],
            "mod_revision": revision,
        }

    def _holds(self, compare: dict[str, Any]) -> bool:
        (field,) = {"create_revision", "mod_revision"} & compare.keys()
        entry = self.keys.get(base64.b64decode(compare["key"]), {})
        return bool(entry.get(field, "0") == compare[field])

    def _within(self, body: dict[str, Any]) -> list[bytes]:
        first = base64.b64decode(body["key"])
        end = base64.b64decode(body["range_end"]) if "range_end" in body else first + b"\0"
        return sorted(key for key in self.keys if first <= key < end)

    def _lease_of(self, operation: dict[str, Any]) -> str:
        return str(operation.get("request_put", {}).get("lease", "0"))

    def _expire(self) -> None:
        now_s = self._now_s()
        self._leases = {each: kept for each, kept in self._leases.items() if kept[0] > now_s}
        gone = [k for k, v in self.keys.items() if v["lease"] not in ("0", *self._leases)]
        for key in gone:
            del self.keys[key]
        self._revision += bool(gone)

    def _header(self) -> dict[str, str]:
        return {"revision": str(self._revision)}

    def _now_s(self) -> float:
        return time.monotonic() + self.ahead_s


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def do_POST(self) -> None:
        fake, path = self.server.fake, self.path.removeprefix("/v3/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.asked[path] += 1
        fault = REFUSED if self.server.is_cut() else fake.fault(fake, path)
        if fault == HANGS:
            fake.ends.wait()
            self.close_connection = True
        elif fault == REFUSED:
            self._say(503, json.dumps(NO_LEADER).encode())
        elif fault == NO_ETCD:
            self._say(200, b'{"hello": "I am a proxy"}')
        else:
            if fault == NO_TOKEN:
                fake.forget_tokens()
            answer = fake.answer(path, body, self.headers.get("Authorization", ""))
            if fault == LOST_ANSWER:
                self.close_connection = True
                return
            self._say(400 if "code" in answer else 200, json.dumps(answer).encode(), fault)

    def _say(self, status: int, data: bytes, fault: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == DRIBBLES:
            for byte in data:
                self.wfile.write(bytes([byte]))
                if self.server.fake.ends.wait(0.05):
                    return
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeEtcd, is_cut: Callable[[], bool]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fake, self.is_cut = fake, is_cut

    def handle_error(self, *_: Any) -> None:
        """Whoever asked has gone: it had waited long enough."""


@contextmanager
def served(fake: FakeEtcd, is_cut: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Its HOST:PORT. ``is_cut``: whoever comes this way is refused."""
    server = _Server(fake, is_cut)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        fake.ends.set()
        server.shutdown()
        server.server_close()
