"""Runs a command and reads what its ranks tell, until it ends. Prints nothing by itself."""

import os
import selectors
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.watch.collector import Collector, ProcessEnded, Said
from holdfast.watch.command import (
    CANNOT_RUN,
    NOT_FOUND,
    WatchedCommand,
    prepare,
    signals_held,
    socket_in,
)
from holdfast.watch.findings import WatchReport
from holdfast.watch.keeping import keep_hook_faults, keep_traceback
from holdfast.watch.records import Lost, RankHello, Record

_SOCKET_LIMIT_BYTES = 100  # of its path: the kernel's limit is 108
# For what is still on its way when the command has ended: of our own time, so that nothing is lost
# because others had the processor.
_LAST_WORDS_S = 1.0


class CannotStart(ConfigError):
    """The command cannot be started; the exit code is a shell's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


PassOn = Callable[[int], None]  # of a signal, to the command


def watch(
    words: Sequence[str],
    findings: WatchReport,
    signals_to: Callable[[PassOn], AbstractContextManager[None]] = lambda pass_on: nullcontext(),
) -> int:
    """The exit code of the command, as a shell gives it.

    ``signals_to``: within it, signals that reach this process are passed on.
    """
    folder = _temporary_folder()
    try:
        with selectors.DefaultSelector() as selector:
            collector = Collector(socket_in(folder), selector)
            try:
                return _run(words, folder, selector, collector, findings, signals_to)
            finally:
                collector.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="holdfast-")
    if len(os.fsencode(socket_in(Path(folder)))) > _SOCKET_LIMIT_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="holdfast-", dir="/tmp")
    return Path(folder)


def _run(
    words: Sequence[str],
    folder: Path,
    selector: selectors.BaseSelector,
    collector: Collector,
    findings: WatchReport,
    signals_to: Callable[[PassOn], AbstractContextManager[None]],
) -> int:
    ranks: dict[int, int] = {}  # number of a process -> its rank
    with ExitStack() as stack:
        with signals_held() as held:
            command = _started(words, folder, held)
            stack.callback(command.close)
            stack.enter_context(signals_to(command.pass_on))
        selector.register(command.pidfd, selectors.EVENT_READ, command)
        _listen(selector, collector, findings, ranks)
        selector.unregister(command.pidfd)
        code = command.wait()
    _hear_last_words(selector, collector, findings, ranks)
    findings.unread(collector.num_dropped, keep_hook_faults(folder))
    return code


def _listen(
    selector: selectors.BaseSelector,
    collector: Collector,
    findings: WatchReport,
    ranks: dict[int, int],
) -> None:
    """Until the command has ended, or watching it has failed: then it is only waited for."""
    try:
        while not _turn(selector, collector, findings, ranks, None):
            pass
    except Exception as why:
        _give_up(findings, why)


def _hear_last_words(
    selector: selectors.BaseSelector,
    collector: Collector,
    findings: WatchReport,
    ranks: dict[int, int],
) -> None:
    until = time.thread_time() + _LAST_WORDS_S
    try:
        while selector.select(0.0) and time.thread_time() < until:
            _turn(selector, collector, findings, ranks, 0.0)
    except Exception as why:  # the command has run: its exit code stands
        _give_up(findings, why)


def _give_up(findings: WatchReport, why: Exception) -> None:
    if not findings.has_failed:  # the first one is what matters
        findings.give_up(why, keep_traceback(why))


def _started(words: Sequence[str], folder: Path, held: Collection[int]) -> WatchedCommand:
    try:
        return WatchedCommand(words, prepare(folder), held)
    except FileNotFoundError as why:
        raise CannotStart(f"watch: {words[0]}: command not found", NOT_FOUND) from why
    except (OSError, ValueError) as why:
        raise CannotStart(f"watch: {words[0]}: cannot be run: {why}", CANNOT_RUN) from why


def _turn(
    selector: selectors.BaseSelector,
    collector: Collector,
    findings: WatchReport,
    ranks: dict[int, int],
    limit_s: float | None,
) -> bool:
    """Take in what is there; True once the command has ended."""
    has_ended = False
    for key, _ in selector.select(limit_s):
        has_ended |= isinstance(key.data, WatchedCommand)
        try:
            for process, item in collector.handle(key):
                _take(findings, ranks, process, item)
        except Exception as why:  # the job must not end because of who watches it
            _give_up(findings, why)
    return has_ended


def _take(findings: WatchReport, ranks: dict[int, int], process: int, item: Said) -> None:
    match item:
        case RankHello() if process not in ranks:
            ranks[process] = item.rank
            findings.join(item)
        case Record() if process in ranks:
            findings.add(ranks[process], item)
        case Lost() if process in ranks:
            findings.lost(ranks[process], item.num)
        case ProcessEnded() if process in ranks:
            rank = ranks.pop(process)
            if rank not in ranks.values():  # else it has started again
                findings.leave(rank)
