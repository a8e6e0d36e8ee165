"""What the processes of a watched job write, read back. The writing side is in ``hooks.py``.
Pure; a line that makes no sense is left out: nothing here may stop the watching."""

from typing import NamedTuple

STEP = "step"  # of an optimizer: marks an iteration
_MOST_LINE_BYTES = 1 << 12
MOST_CALLS = 1 << 14  # that a process may name at a time


class Call(NamedTuple):
    """What is the same each time: the period is found in the order of these."""

    op: str  # name of the function; "gradients": the reduction of DistributedDataParallel
    group: str  # "": the default group; with "@3": a message to or from rank 3
    size: int  # bytes of its tensors

    def __str__(self) -> str:
        return f"{self.op} {self.size} B" if self.size else self.op


class Record(NamedTuple):
    call: Call
    enter_ns: int
    leave_ns: int

    @property
    def took_s(self) -> float:
        return (self.leave_ns - self.enter_ns) / 1e9


class Hello(NamedTuple):
    """The first line of each process."""

    rank: int
    world_size: int
    pid: int


class Reader:
    """Of one process: bytes in, in pieces of any length; what they say out."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False  # the rest of a line that is too long
        self._calls: dict[int, Call] = {}

    def feed(self, data: bytes) -> list[Hello | Record]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            self._skips = False
            del lines[0]
        if self._skips or len(self._rest) > _MOST_LINE_BYTES:
            self._skips, self._rest = True, b""
        read = [self._read(line.decode(errors="replace").split()) for line in lines]
        return [item for item in read if item is not None]

    def _read(self, words: list[str]) -> Hello | Record | None:
        try:
            match words:
                case ["rank", rank, world_size, pid]:
                    return Hello(int(rank), int(world_size), int(pid))
                case ["call", number, op, group, size]:
                    if 0 <= int(number) < MOST_CALLS:
                        self._calls[int(number)] = Call(op, group.removeprefix("-"), int(size))
                case [number, enter_ns, leave_ns]:
                    return Record(self._calls[int(number)], int(enter_ns), int(leave_ns))
        except (ValueError, KeyError):
            pass
        return None
