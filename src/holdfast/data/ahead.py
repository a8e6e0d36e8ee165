"""Loads micro-batches before they are asked for, in processes beside the one that computes.

Not in threads: a data set may draw from the generators of its process, and so do layers. Processes
are forked, so that the data set need not be sent to them or opened again. A thread for each hands
it one micro-batch after the other.
"""

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch import Tensor

from holdfast.data.batches import Batch, Batches
from holdfast.data.loader_process import run_loader
from holdfast.data.parcel import receive
from holdfast.errors import DataError
from holdfast.host.parentage import Forker

Key = tuple[int, int]
"""Step and micro-batch."""

_LOOK_S = 0.05
_POSITIONS = 6  # steps whose position is known: what is loaded ahead is of later ones
_END_S = 1.0  # of a process whose connection has ended
_DEATHS = 3  # while one micro-batch is loaded


class LoadingAhead:
    """At most ``ahead`` micro-batches are loaded, or being loaded, that nobody has asked for."""

    def __init__(
        self,
        batches: Batches,
        *,
        processes: int,
        ahead: int,
        check: Callable[[], None],
        quiet: AbstractContextManager[Any],
    ) -> None:
        """``check`` raises if this worker is to stop; ``quiet`` is held while a process is forked:
        none of the locks that it needs may be taken then."""
        self._batches, self._ahead = batches, ahead
        self._num_processes = 1 if batches.is_stream else processes  # each would read all of it
        self._check, self._quiet = check, quiet
        self._changed = threading.Condition()
        self._expected: list[Key] = []
        self._wanted: set[Key] = set()  # expected last, begun or not
        self._asked: Key | None = None
        self._loading: set[Key] = set()
        self._loaded: dict[Key, Batch | Exception] = {}
        self._processes: dict[int, BaseProcess] = {}  # that are fed, by their pid
        self._is_closed = False
        self._positions: dict[int, Tensor] = {}  # of a stream, by the step that they belong to

    @property
    def is_stream(self) -> bool:
        return self._batches.is_stream

    def expect(self, keys: Sequence[Key]) -> None:
        """What will be asked for next, in this order, as far as it is known."""
        self._start()
        with self._changed:
            self._wanted = set(keys)
            for key in self._loaded.keys() - self._wanted:
                del self._loaded[key]
            self._expected = [key for key in keys if not self._is_begun(key)]
            self._changed.notify_all()

    def load(self, step: int, microbatch: int) -> Batch:
        key = step, microbatch
        for _ in range(_DEATHS + self._num_processes):  # others may have died unnoticed
            self._start()
            found = self._waited(key)
            if isinstance(found, tuple):
                return found
            if not isinstance(found, _Died):
                raise found
        raise DataError(
            f"{found} while it loaded step {step + 1}, micro-batch {microbatch}, as others did: "
            "the data set crashed it, or memory ran out; lower data.workers or data.ahead, or set "
            "data.workers=0 to have the crash in the worker itself"
        )

    def _waited(self, key: Key) -> Batch | Exception:
        with self._changed:
            self._asked = key
            self._changed.notify_all()
            try:
                while key not in self._loaded:
                    self._changed.wait(_LOOK_S)
                    self._check()
                return self._loaded.pop(key)
            finally:
                self._asked = None
                self._changed.notify_all()

    def position(self, step: int) -> Tensor | None:
        """Of a stream, not after the start of ``step``, as those who read it have told."""
        with self._changed:
            known = [one for one in self._positions if one <= step]
            return self._positions[max(known)] if known else self._batches.position(step)

    def go_on_from(self, position: Tensor) -> None:
        """Those who load are forked after that."""
        self._batches.go_on_from(position)
        with self._changed:
            for process in self._processes.values():
                process.kill()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for process in self._processes.values():
                process.kill()

    # --- processes ---

    def _start(self) -> None:
        """By the thread that computes: the processes end with it."""
        while len(self._processes) < self._num_processes:
            context = multiprocessing.get_context("fork")
            here, there = context.Pipe()
            process = context.Process(
                target=run_loader, args=(self._batches, there, Forker.me()), daemon=True
            )
            with self._quiet:
                process.start()
            there.close()
            assert process.pid is not None
            with self._changed:
                self._processes[process.pid] = process
            threading.Thread(target=self._feed, args=(here, process), daemon=True).start()

    def _feed(self, connection: Connection, process: BaseProcess) -> None:
        with connection:
            while (key := self._next()) is not None:
                try:
                    connection.send(key)
                    found = receive(connection)
                except (OSError, EOFError):
                    self._ended(key, process)
                    return
                if isinstance(found, tuple):
                    found, position = found
                    self._remember(key[0], position)
                self._done(key, found)

    def _remember(self, step: int, position: Tensor | None) -> None:
        with self._changed:
            if position is not None:
                self._positions[step] = position
            while len(self._positions) > _POSITIONS:
                del self._positions[min(self._positions)]

    def _ended(self, key: Key, process: BaseProcess) -> None:
        process.join(_END_S)
        process.kill()
        process.join()
        with self._changed:
            del self._processes[process.pid or 0]
            self._done(key, _Died(process))

    def _next(self) -> Key | None:
        with self._changed:
            while not self._is_closed:
                if self._asked is not None and not self._is_begun(self._asked):
                    return self._begin(self._asked)
                if self._expected and len(self._loading) + len(self._loaded) < self._ahead:
                    return self._begin(self._expected[0])
                self._changed.wait()
        return None

    def _is_begun(self, key: Key) -> bool:
        return key in self._loading or key in self._loaded

    def _begin(self, key: Key) -> Key:
        self._expected = [other for other in self._expected if other != key]
        self._loading.add(key)
        return key

    def _done(self, key: Key, found: Batch | Exception) -> None:
        with self._changed:
            self._loading.discard(key)
            if key in self._wanted or key == self._asked:  # else it would take a place for nothing
                self._loaded[key] = found
            self._changed.notify_all()


class _Died(Exception):
    def __init__(self, process: BaseProcess) -> None:
        code = process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        super().__init__(f"a process that loads data (pid {process.pid}) ended {how}")
