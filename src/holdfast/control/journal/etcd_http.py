"""One request to etcd, by its JSON gateway, with a time limit for all of it.

Knows HTTP, TLS and names of hosts. Python's own client has limits for each piece of an answer
only, and none for the name of a host.
"""

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.addresses import host_port

_MOST_BYTES = 64 << 20  # of an answer


class HttpAnswer(NamedTuple):
    status: int
    content: dict[str, Any]


class HttpLink:
    """To one endpoint; connected when it is needed. For one thread."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._found: list[str] = []  # what the name was last time
        self._socket: socket.socket | None = None

    def __str__(self) -> str:
        return host_port(self._host, self._port)

    def post(
        self, path: str, body: Any, headers: Mapping[str, str], deadline_s: float
    ) -> HttpAnswer:
        """OSError: no answer, or none that can be understood. Whether it was done is not known."""
        sock = self._socket or self._connected(deadline_s)
        try:
            sock.settimeout(_left_s(deadline_s))
            sock.sendall(self._request(path, json.dumps(body).encode(), headers))
            answer, goes_on = _answer(sock, deadline_s)
        except BaseException:
            self.close()
            raise
        if not goes_on:
            self.close()
        return answer

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _request(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = {
            "Host": str(self),
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body

    def _connected(self, deadline_s: float) -> socket.socket:
        self._found = _addresses_of(self._host, deadline_s) or self._found
        error: OSError = OSError(f"the host {self._host} is not known")
        for address in self._found:
            try:
                sock = socket.create_connection((address, self._port), _left_s(deadline_s))
            except OSError as why:
                error = why
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._wrapped(sock)
            return self._socket
        raise error

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise


def _answer(sock: socket.socket, deadline_s: float) -> tuple[HttpAnswer, bool]:
    """And whether the connection can be used again."""
    response = http.client.HTTPResponse(_Source(sock, deadline_s), method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
        data = response.read(_MOST_BYTES)
        goes_on = response.isclosed() and not response.will_close
        content = json.loads(data)
    except (http.client.HTTPException, ValueError) as why:
        raise OSError(f"no answer of etcd ({why!r:.100})") from why
    finally:
        response.close()
    if not isinstance(content, dict):
        raise OSError("no answer of etcd")
    return HttpAnswer(response.status, content), goes_on


class _Source:
    """A socket, as far as an HTTP response uses it."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._socket, self._deadline_s = sock, deadline_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._socket, self._deadline_s))


class _Incoming(io.RawIOBase):
    """What comes until the deadline, however small the pieces are."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._socket, self._deadline_s = sock, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(_left_s(self._deadline_s))
        return self._socket.recv_into(buffer)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _addresses_of(host: str, deadline_s: float) -> list[str]:
    """Empty: nobody has said in time. Asking a name server cannot be given a limit, so another
    thread does."""
    found: list[str] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            found.extend(_asked(host))

    with contextlib.suppress(OSError):
        return _asked(host, socket.AI_NUMERICHOST)
    asking = threading.Thread(target=ask, name="ask for a name", daemon=True)
    try:
        asking.start()
    except RuntimeError as why:
        raise OSError("no thread to be had") from why
    asking.join(_left_s(deadline_s))
    return list(found)


def _asked(host: str, flags: int = 0) -> list[str]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
