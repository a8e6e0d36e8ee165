"""A run that is under way in this process: its events as they come, its end, its result."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from holdfast.api.record import Result
from holdfast.api.stream import EventStream
from holdfast.control.io.agents.agent_process import AgentProcess, Awaited, Starter
from holdfast.control.io.launcher import Launcher, RunRequest
from holdfast.errors import HoldfastError
from holdfast.observability.events import Event
from holdfast.observability.summary import Summary


class LiveRun:
    """Made by :func:`start`. Trains in a thread of its own; all else is up to the caller's thread.

    ``for event in run`` gives every event once, in order, until the run has ended. Whoever is far
    behind misses times of operations (:class:`~holdfast.events.WorkerStep`), never other events.

    ``with run: ...`` waits for the end of the run. If the block ends with an exception, Ctrl-C
    included, the run ends first: after its step, with a checkpoint. Ctrl-C once more ends it at
    once. The exception is then raised, with a note on how to go on.
    """

    def __init__(
        self, request: RunRequest, warn: Callable[[str], None], agents: Starter | None = None
    ) -> None:
        """``agents``: brings them up on other machines."""
        self._stream = EventStream()
        starter, self._surroundings = _starter(request, agents)
        self._launcher = Launcher(request, starter, handle=self._stream.put, warn=warn)
        self.run_dir = self._launcher.run_dir
        self.config, self.faults = request.config, tuple(request.faults)
        self.ticket = request.ticket
        self.takes_over = request.left_behind is not None
        self.job = request.job.reference
        self._ended = threading.Event()
        self._summary: Summary | None = None
        self._failure: BaseException | None = None

    def begin(self) -> None:
        """Once; :func:`start` has done it."""
        # A program that ends takes its runs along: nobody is left to tell of them.
        thread = threading.Thread(target=self._run, name="holdfast run", daemon=True)
        try:
            thread.start()
        except RuntimeError as why:  # the machine is out of threads
            self._end(HoldfastError(f"the run could not be started: {why}"))

    def spare_unheard(self) -> None:
        """Checkpoints that whoever takes the events has not heard of stay where they are."""
        self._launcher.spare_checkpoints(self._stream.unheard_checkpoints)

    def _run(self) -> None:
        try:
            with self._surroundings:
                self._summary = self._launcher.run()
        except BaseException as why:  # raised again where the result is asked for
            self._end(why)
        else:
            self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._stream.close()
        self._ended.set()

    def __iter__(self) -> Iterator[Event]:
        return iter(self._stream)

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        why: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if why is not None and not self.is_over:
            self.interrupt()
        self._wait()
        if why is not None and self._failure not in (None, why):
            self._add_note(why)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def interrupt(self) -> None:
        """End the run after its step, with a checkpoint; asked again, at once. Does not wait.

        :meth:`result` then raises :class:`RunInterrupted`.
        """
        self._launcher.interrupt()

    def wait(self, limit_s: float | None = None) -> bool:
        """Until the run has ended, at most for so long; whether it has."""
        return self._ended.wait(limit_s)

    def result(self) -> Result:
        """Wait for the end. Raises what has ended the run, if it has not finished."""
        self._wait()
        if self._failure is not None:
            raise self._failure
        assert self._summary is not None  # there is no other way to end
        return Result(self.run_dir, self._summary, self.job)

    def _wait(self) -> None:
        """Ctrl-C meanwhile ends the run in good order, and is raised after that."""
        pressed: KeyboardInterrupt | None = None
        while True:
            try:
                self._ended.wait()
                break
            except KeyboardInterrupt as why:
                pressed = why
                self.interrupt()
        if pressed is not None:
            self._add_note(pressed)
            raise pressed

    def _add_note(self, why: BaseException) -> None:
        """How the run has ended, and how to go on."""
        note = f"holdfast: {self._failure or 'the run had finished'}"
        if note not in getattr(why, "__notes__", ()):
            why.add_note(note)


def _starter(
    request: RunRequest, agents: Starter | None
) -> tuple[Starter, AbstractContextManager[None]]:
    """And what a run has to be surrounded with."""
    if request.config.machines.count or request.left_behind is not None:
        return agents or Awaited(), nullcontext()
    if request.config.workers.are_processes:
        return AgentProcess(request.config), nullcontext()
    from holdfast.api import in_threads  # torch: only if asked for

    return in_threads.starter(), in_threads.as_before()
