"""The lines of a run's events, from a place on, over all files: those that are there now.

Asked again, it goes on with those that have come since, whatever has become of the files in
between: the newest has become an older one, that was compressed, its writer died.
"""

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from holdfast.observability.log.files import BULK, EventFile, event_files

_CHUNK_BYTES = 1 << 20
_PAUSES_S = (0.001, 0.002, 0.01, 0.05, 0.0)  # while a file is compressed it may not be found


class FilePlace(NamedTuple):
    """Where to go on: after so many bytes of a file, or so many of its lines that are no bulk."""

    number: int  # of the file; 0: the first there is
    end: int = 0
    num_kept: int = 0  # counts instead of ``end`` if the file has lost its bulk


class EventLine(NamedTuple):
    text: bytes  # without the end of the line
    after: FilePlace  # where the next one begins


class Tail:
    """OSError: a file cannot be read."""

    def __init__(self, newest: Path, start: FilePlace | None = None) -> None:
        self._newest = newest
        self._file: BinaryIO | None = None
        self.place = start or FilePlace(0)  # after the last line that was told
        self.path = newest  # of the file that it is in
        self._rest = b""

    @property
    def rest(self) -> EventLine:
        """What follows the last end of a line: torn, or still on its way."""
        number, end, num_kept = self.place
        kept = num_kept + (not self._rest.startswith(BULK))
        return EventLine(self._rest, FilePlace(number, end + len(self._rest), kept))

    def lines(self) -> Iterator[EventLine]:
        while self._file is not None or self._open():
            if self._is_newest():
                yield from self._whole_lines()
                return
            yield from self._whole_lines()  # what came before the next file was begun
            yield from self._leave()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _whole_lines(self) -> Iterator[EventLine]:
        number, end, num_kept = self.place
        while chunk := self._read():
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for text in whole:
                end += len(text) + 1
                num_kept += not text.startswith(BULK)
                self.place = FilePlace(number, end, num_kept)
                yield EventLine(text, self.place)

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            return self._file.read(_CHUNK_BYTES)
        except (EOFError, zlib.error) as why:
            raise OSError(f"it is damaged: {why}") from why

    def _open(self) -> bool:
        """False: there is no such file yet."""
        for pause_s in _PAUSES_S:
            files = event_files(self._newest)
            found = next((each for each in files if each.number >= self.place.number), None)
            if found is None:
                return False
            is_gap = found.number > max(1, self.place.number)  # it is being compressed, or is lost
            if (is_gap and pause_s) or not self._opened(found):
                time.sleep(pause_s)
                continue
            self.path = found.path
            self._skip(found)
            return True
        raise FileNotFoundError(f"the file before or after {self.path} comes and goes")

    def _opened(self, found: EventFile) -> bool:
        """False: meanwhile it has become an older one, or is compressed."""
        try:
            self._file = found.open()
        except FileNotFoundError:
            if found.path == self._newest:
                raise
            return False
        is_same = found.path != self._newest or event_files(self._newest)[-1] == found
        if not is_same:
            self.close()
        return is_same

    def _skip(self, found: EventFile) -> None:
        assert self._file is not None
        if found.number != self.place.number:
            self.place = FilePlace(found.number)
        elif not found.is_compressed:
            self._file.seek(self.place.end)
        else:
            for _ in range(self.place.num_kept):
                self._file.readline()

    def _is_newest(self) -> bool:
        assert self._file is not None
        if self.path != self._newest:
            return False
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._newest.stat())
        except FileNotFoundError:
            return True

    def _leave(self) -> Iterator[EventLine]:
        """For the file after it; or for a copy that has taken its place."""
        rest = self.rest
        is_replaced = event_files(self._newest)[-1].number == self.place.number
        self.close()
        if is_replaced:
            return
        if rest.text:  # torn, or whole but for its end
            yield rest
        self.place = FilePlace(self.place.number + 1)
