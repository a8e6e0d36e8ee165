"""Takes CPU time from this process, really: a helper stops and wakes it, again and again.

The helper ends with this process, with the image it runs, or when told to, and wakes it last of
all. If the helper is killed while this process is stopped, it hangs: as any that was stopped.
Knows nothing of faults; who stops this process in another way is woken by it too.
"""

import contextlib
import os
import subprocess
import sys

_PERIOD_S = 0.03  # short next to a heartbeat, long next to a switch of processes
_END_LIMIT_S = 10.0

# Run by a bare interpreter. It knows that this process is there no more, or runs another program,
# by the end of its standard input; by the process handle if somebody else has that pipe as well.
# Whatever a phase took too long is made good in the next one that stops.
_HELPER = """
import os, select, signal, sys, time
target, factor, run_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
process = os.pidfd_open(target)

def over(seconds):
    return bool(select.select([0, process], [], [], max(0.0, seconds))[0])

def send(number):
    signal.pidfd_send_signal(process, number)
    return time.monotonic()

woken_s, owed_s = time.monotonic(), 0.0
try:
    while os.getppid() == target and not over(run_s):
        stopped_s = send(signal.SIGSTOP)
        owed_s += (stopped_s - woken_s) * (factor - 1)
        ends = over(owed_s)
        woken_s = send(signal.SIGCONT)
        owed_s -= woken_s - stopped_s
        if ends:
            break
except ProcessLookupError:
    pass
finally:
    try:
        send(signal.SIGCONT)
    except ProcessLookupError:
        pass
"""


class DutyCycle:
    """One helper at most. Not for a process whose threads are several workers."""

    def __init__(self) -> None:
        self._helper: subprocess.Popen[bytes] | None = None
        self._factor = 1.0

    def set(self, factor: float) -> None:
        """From now on the process has 1 / ``factor`` of the time; 1: all of it."""
        if factor == self._factor:
            return
        self._end()
        self._factor = factor
        if factor > 1:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _HELPER, *self._numbers()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is not for it
            )

    def _numbers(self) -> list[str]:
        return [str(os.getpid()), repr(self._factor), repr(_PERIOD_S / self._factor)]

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None or helper.stdin is None:
            return
        helper.stdin.close()
        # If it does not end now, it does when this process ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(_END_LIMIT_S)
