"""A delay line between two network cards, for kernels without netem: wire.py NEAR FAR DELAY_S.

Frames pass with their offload header, so that large segments stay whole and checksums may stay
undone. Ends with its standard input.
"""

import contextlib
import select
import socket
import sys
from collections import deque
from time import monotonic

_SOL_PACKET, _VNET_HDR, _IGNORE_OUTGOING = 263, 15, 23
_ALL_PROTOCOLS = 3
_FRAME_BYTES = 1 << 17
_AT_ONCE = 64


class _End:
    def __init__(self, card: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        self.socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, 16 << 20)
        self.socket.bind((card, _ALL_PROTOCOLS))
        self.socket.setblocking(False)
        self.leaving: deque[tuple[float, bytes]] = deque()  # when, what

    def take(self, out: "_End", delay_s: float) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                frame = self.socket.recv(_FRAME_BYTES)
                out.leaving.append((monotonic() + delay_s, frame))

    def let_go(self) -> None:
        while self.leaving and self.leaving[0][0] <= monotonic():
            with contextlib.suppress(OSError):  # no room, or the cable is out: lost
                self.socket.send(self.leaving.popleft()[1])


def main(near: str, far: str, delay_s: float) -> None:
    ends = (_End(near), _End(far))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        dues_s = [end.leaving[0][0] for end in ends if end.leaving]
        wait_s = max(0.0, min(dues_s) - monotonic()) if dues_s else None
        watched = [sys.stdin, *(end.socket for end in ends)]
        ready = select.select(watched, [], [], wait_s)[0]
        if sys.stdin in ready:
            return
        for end, out in (ends, ends[::-1]):
            with contextlib.suppress(OSError):  # the cable is out
                end.take(out, delay_s)
        for end in ends:
            end.let_go()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
