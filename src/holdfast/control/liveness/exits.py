"""How a process ended, in words, and whether another one in its place would end the same way."""

import signal
from collections import Counter
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.errors import HoldfastError

_CAUSES = {
    signal.SIGILL: "the processor refuses an instruction; set HOLDFAST_INSTRUCTION_SET=AVX2",
    signal.SIGBUS: "a mapped file has become shorter, or /dev/shm or the disk is full",
    signal.SIGSEGV: "a crash in compiled code, of a library or of the job",
    signal.SIGFPE: "a division by zero in compiled code",
}
"""Of signals that come from what a process does: who does the same again dies again."""


def describe(code: int) -> str:
    """``code``: as of ``os.waitstatus_to_exitcode``, below 0 for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:  # a real-time signal
        return f"signal {-code}"
    cause = _CAUSES.get(number)
    return f"signal {number.name}" + (f" ({cause})" if cause else "")


@dataclass(frozen=True, slots=True)
class _Death:
    worker: WorkerId
    step: int  # that the run was in


class Deaths:
    """Of causes that would be the same for a replacement."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], _Death] = {}
        self._num_of: Counter[WorkerId] = Counter()

    def note(self, worker: WorkerId, stage: int, code: int, step: int, *, is_held: bool) -> bool:
        """Whether its place is to stay empty: the second such death there, however long ago.

        ``is_held``: somebody else holds its stage. If nobody does, and the same happened to a
        worker of this stage before and no step ended since: HoldfastError.
        """
        if code >= 0 or -code not in _CAUSES:
            return False
        self._num_of[worker] += 1
        first = self._first.get((code, stage))
        self._first[code, stage] = _Death(worker, step)
        if first is not None and step <= first.step and not is_held:
            raise HoldfastError(
                f"worker {worker} died in step {step + 1} as worker {first.worker} did before: "
                f"{describe(code)}. Another one would die too: all workers were stopped."
            )
        return is_held and self._num_of[worker] > 1
