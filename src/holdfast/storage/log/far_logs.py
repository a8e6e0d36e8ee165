"""Logs of another machine, read over the network from a worker that is there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from holdfast import names
from holdfast.errors import ProtocolError, TransferFailed
from holdfast.files.courier import Courier
from holdfast.files.file_link import FileLink, FileWords
from holdfast.storage.log.log_shelf import MOST_BYTES, MOST_NUMBER, NOT_OURS, decode_scan
from holdfast.storage.log.segment import NotOurs, Scan
from holdfast.storage.log.sources import LogDamaged, LogSegment, SegmentView, TellTrouble

_MOST_LIST_BYTES = 1 << 30
_MOST_FRAME_BYTES = 1 << 40


class FarLogs:
    """``couriers``: to those who are there, any of whom will do. For one thread."""

    def __init__(self, machine: str, couriers: Sequence[Courier]) -> None:
        self._machine, self._couriers = machine, list(couriers)
        self._stack = ExitStack()
        self._link: FileLink | None = None

    def __str__(self) -> str:
        return f"machine {self._machine}"

    def segments(self, note: TellTrouble) -> list[LogSegment]:
        """If the first who is asked is gone, the next one is."""
        try:
            return list(self.listed())
        except TransferFailed as why:
            note(f"{self}: {why}")
            return []

    def listed(self) -> "list[FarSegment]":
        """TransferFailed: nobody there can tell."""
        rows = self._rows(self.ask({"do": "segments"}, _MOST_LIST_BYTES))
        return [FarSegment(self, *row) for row in rows]

    def _rows(self, data: bytes) -> list[tuple[str, str, int]]:
        try:
            rows = [(str(root), str(worker), number) for root, worker, number in json.loads(data)]
            for _, worker, number in rows:
                names.WORKER.check(worker, "worker")
                names.check_number(number, "number", 0, MOST_NUMBER)
        except (ValueError, TypeError, RecursionError, ProtocolError) as why:
            raise TransferFailed(f"{self}: no list of segments ({why})") from why
        return rows

    def ask(self, ask: FileWords, most_bytes: int) -> bytes:
        """TransferFailed: nobody there can answer it. NotOurs: it is of another run."""
        problems: list[str] = []
        for courier in list(self._couriers):
            try:
                return self._ask_one(courier, ask, most_bytes)
            except TransferFailed as why:
                self.close()
                if why.refused:  # the next one would see the same files
                    raise
                problems.append(str(why))
                self._couriers.remove(courier)
        raise TransferFailed("; ".join(problems) or "no worker of the run is there")

    def _ask_one(self, courier: Courier, ask: FileWords, most_bytes: int) -> bytes:
        try:
            if self._link is None:
                self._link = self._stack.enter_context(courier.link())
            self._link.limit(courier.limit_s)
            self._link.say(ask)
            told = self._link.hear()
            if NOT_OURS in told:
                raise NotOurs(str(told[NOT_OURS]))
            size = names.check_number(told.get("size"), "size", 0, most_bytes)
            return b"".join(map(bytes, self._link.pieces(size)))
        except ProtocolError as why:
            raise TransferFailed(f"{courier}: {why}") from why

    def close(self) -> None:
        self._link = None
        with suppress(TransferFailed):  # it is known
            self._stack.close()


@dataclass(frozen=True, slots=True)
class _BytesView:
    """Of a segment from ``start`` on."""

    data: bytes
    start: int

    def read(self, num_bytes: int, at: int) -> bytes:
        return self.data[at - self.start : at - self.start + num_bytes]

    def fill(self, memories: Sequence[memoryview], at: int) -> None:
        place = at - self.start
        for memory in memories:
            part = self.data[place : place + len(memory)]
            if len(part) < len(memory):
                raise LogDamaged("cut off")
            memory[:] = part
            place += len(memory)


@dataclass(frozen=True, slots=True)
class FarSegment:
    source: FarLogs
    root: str
    worker: str
    number: int

    def __str__(self) -> str:
        return f"worker {self.worker}, segment {self.number} of {self.source}"

    def scan(self, start: int, run: str) -> Scan:
        ask = {**self._named("scan"), "start": start, "run": run}
        try:
            return decode_scan(self.source.ask(ask, _MOST_LIST_BYTES))
        except ProtocolError as why:
            raise TransferFailed(str(why)) from why

    @contextmanager
    def view(self, at: int, num_bytes: int) -> Iterator[SegmentView]:
        """A whole frame at once: each request costs a way there and back."""
        most = min(num_bytes, _MOST_FRAME_BYTES, MOST_BYTES)
        ask = {**self._named("read"), "at": at, "size": most}
        yield _BytesView(self.source.ask(ask, most), at)

    def _named(self, do: str) -> FileWords:
        return {"do": do, "root": self.root, "worker": self.worker, "number": self.number}
