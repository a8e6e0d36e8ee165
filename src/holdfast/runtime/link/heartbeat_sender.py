"""A thread that tells the coordinator again and again that this process runs."""

import threading
from collections.abc import Callable

from holdfast.errors import PeerLost
from holdfast.host.scarce import patiently
from holdfast.protocol import messages
from holdfast.runtime.link.control_link import Stopped

_JOIN_LIMIT_S = 10.0


class HeartbeatSender:
    """Tells the coordinator that this process runs, every ``beat_s``."""

    def __init__(self, send: Callable[[messages.Message], None]) -> None:
        self._send = send
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, beat_s: float, beat: Callable[[], messages.Heartbeat | None]) -> None:
        """``beat`` makes the message; None: be silent. Starting again changes nothing."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, args=(beat_s, beat), name="heartbeats", daemon=True
            )
            patiently(thread.start)
            self._thread = thread

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_LIMIT_S)

    def _run(self, beat_s: float, beat: Callable[[], messages.Heartbeat | None]) -> None:
        try:
            while not self._ended.wait(beat_s):
                message = beat()
                if message is not None:
                    self._send(message)
        except (PeerLost, Stopped):
            return  # the reading thread has noticed too
