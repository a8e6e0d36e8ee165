"""What the processes of a watched job write, read back. The writing side is in ``hooks.py``.
Pure; a line that makes no sense is left out: nothing here may stop the watching."""

from typing import NamedTuple

STEP = "step"  # of an optimizer: marks an iteration
_MOST_LINE_BYTES = 1 << 12
MOST_CALLS = 1 << 14  # that a process may name at a time
MOST_CALL_BYTES = 1 << 21  # of their lines together
_MOST_RANKS = 1 << 16


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


class RankHello(NamedTuple):
    """The first line of each process."""

    rank: int
    world_size: int
    pid: int


class Lost(NamedTuple):
    """A process had more to tell than was read: it has thrown away so many records."""

    num: int


class Reader:
    """Of one process: bytes in, in pieces of any length; what they say out."""

    def __init__(self) -> None:
        self.num_dropped = 0  # lines that were too long, or named more than is kept
        self._call_bytes: dict[int, int] = {}
        self._num_call_bytes = 0
        self._rest = b""
        self._skips = False  # the rest of a line that is too long
        self._calls: dict[int, Call] = {}

    @property
    def num_calls(self) -> int:
        """Names that are known."""
        return len(self._calls)

    @property
    def num_rest_bytes(self) -> int:
        """Of a line that is not whole yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[RankHello | Record | Lost]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            self._skips = False
            del lines[0]
        if self._skips or len(self._rest) > _MOST_LINE_BYTES:
            self.num_dropped += not self._skips
            self._skips, self._rest = True, b""
        read = [self._read(line) for line in lines if self._is_short(line)]
        return [item for item in read if item is not None]

    def _is_short(self, line: bytes) -> bool:
        is_short = len(line) <= _MOST_LINE_BYTES
        self.num_dropped += not is_short
        return is_short

    def _read(self, line: bytes) -> RankHello | Record | Lost | None:
        try:
            match line.decode(errors="replace").split():
                case ["rank", rank, world_size, pid]:
                    if 0 <= int(rank) < int(world_size) <= _MOST_RANKS:
                        return RankHello(int(rank), int(world_size), int(pid))
                case ["call", number, op, group, size]:
                    call = Call(op, group.removeprefix("-"), int(size))
                    self._name(int(number), call, len(line))
                case ["lost", num]:
                    return Lost(max(0, int(num)))
                case [number, enter_ns, leave_ns]:
                    return Record(self._calls[int(number)], int(enter_ns), int(leave_ns))
        except (ValueError, KeyError):
            pass
        return None

    def _name(self, number: int, call: Call, num_bytes: int) -> None:
        self._calls.pop(number, None)  # numbers may be given anew
        self._num_call_bytes -= self._call_bytes.pop(number, 0)
        if 0 <= number < MOST_CALLS and self._num_call_bytes + num_bytes <= MOST_CALL_BYTES:
            self._calls[number], self._call_bytes[number] = call, num_bytes
            self._num_call_bytes += num_bytes
        else:
            self.num_dropped += 1
