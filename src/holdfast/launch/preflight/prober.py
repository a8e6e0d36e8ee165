"""One machine of a preflight: answers whoever calls, and calls whom it is told to.

Threads, as it lives for a minute and forks nothing.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.addresses import host_port
from holdfast.auth.handshake import AGENT
from holdfast.errors import ConfigError, HoldfastError, ProtocolError
from holdfast.host.network import open_listener
from holdfast.launch.preflight.facts import LinkFacts, own_facts
from holdfast.launch.preflight.talk import Talk, answered, called, called_until

_NUM_ECHOES = 20
_CALL_LIMIT_S = 8.0
_ANSWER_LIMIT_S = 15.0
_IDLE_LIMIT_S = 600.0
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 28
_LONG_ENOUGH_S = 0.2  # what is sent in less says little of the rate


class MachineProber:
    """``wall_s``: the time of day of this machine."""

    def __init__(
        self, machine: str, secret: bytes, wall_s: Callable[[], float] = lambda: time.time()
    ) -> None:
        self._machine, self._secret, self._wall_s = machine, secret, wall_s

    def run(self, host: str, port: int, *, advertise: str, try_s: float) -> None:
        """Until whoever coordinates, at ``host``, says that it was all. HoldfastError: who not."""
        talk = self._called(host, port, try_s)
        everywhere = "::" if ":" in talk.own_host else "0.0.0.0"
        with open_listener(everywhere, 0, backlog=64) as listener:
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
            told = advertise or talk.own_host.removeprefix("::ffff:")
            facts = own_facts(self._machine, told, listener.getsockname()[1])
            try:
                talk.send(**facts.told())
                while self._obeys(talk, talk.read(_IDLE_LIMIT_S)):
                    pass
            finally:
                talk.close()

    def _called(self, host: str, port: int, try_s: float) -> Talk:
        where = f"machine {self._machine}: no preflight"
        try:
            return called_until(host, port, self._secret, try_s)
        except ProtocolError as why:
            raise ConfigError(
                f"{where} with this secret is at {host_port(host, port)} ({why}); take the ticket "
                "that the preflight has written on the machine that coordinates it"
            ) from why
        except HoldfastError as why:
            raise ConfigError(
                f"{where} has answered at {host_port(host, port)} within {try_s:g} s ({why}); is "
                "it there, its port open, and its name known here?"
            ) from why

    def _obeys(self, talk: Talk, order: dict[str, Any]) -> bool:
        match order:
            case {"do": "time"}:
                talk.send(wall_s=self._wall_s())
            case {"do": "probe", "host": str(host), "port": int(port)}:
                talk.send(**self._probed(host, port).told())
            case {"do": "refused", "why": str(why)}:
                raise HoldfastError(why)
            case _:
                return False
        return True

    def _probed(self, host: str, port: int) -> LinkFacts:
        try:
            talk = called(host, port, self._secret, role=AGENT, limit_s=_CALL_LIMIT_S)
        except HoldfastError as why:
            return LinkFacts(reason=str(why) or type(why).__name__)
        try:
            return LinkFacts("", _round_trip_s(talk), _bytes_per_s(talk))
        except HoldfastError as why:
            return LinkFacts(reason=str(why))
        finally:
            talk.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:  # closed: it was all
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock, suppress(HoldfastError, ValueError):  # a stranger, or it was all
            talk = answered(sock, self._secret, AGENT)
            while True:
                _echo(talk, talk.read(_ANSWER_LIMIT_S))


def _echo(talk: Talk, order: dict[str, Any]) -> None:
    match order:
        case {"do": "take", "bytes": int(length)} if 0 < length <= _MOST_BYTES:
            talk.drop_bytes(length, _ANSWER_LIMIT_S)
    talk.send(done=True)


def _round_trip_s(talk: Talk) -> float:
    shortest_s = float("inf")
    for _ in range(_NUM_ECHOES):
        start_s = time.monotonic()
        talk.send(do="echo")
        talk.read(_ANSWER_LIMIT_S)
        shortest_s = min(shortest_s, time.monotonic() - start_s)
    return shortest_s


def _bytes_per_s(talk: Talk) -> float:
    """More and more, until it takes a while; twice, as a machine may be busy for a moment."""
    length = _FIRST_BYTES
    while True:
        took_s = _taken_s(talk, length)
        if took_s >= _LONG_ENOUGH_S:
            took_s = min(took_s, _taken_s(talk, length))
        if took_s >= _LONG_ENOUGH_S or 2 * length > _MOST_BYTES:
            return length / took_s
        length *= 2 if took_s > _LONG_ENOUGH_S / 8 else 4


def _taken_s(talk: Talk, length: int) -> float:
    start_s = time.monotonic()
    talk.send(do="take", bytes=length)
    talk.send_bytes(length, _ANSWER_LIMIT_S)
    talk.read(_ANSWER_LIMIT_S)
    return time.monotonic() - start_s
