"""What a worker has told its coordinator, for another one that may not know it. Bounded.

Only what nobody would ask for: reports of steps, and what became of parts of checkpoints, faults
and logs. All else is said again by itself, or was of use only at that time. Sends nothing.
"""

from collections import deque
from dataclasses import replace

from holdfast.protocol import messages

MOST_REPORTS = 20_000  # steps that may be trained without a coordinator before losses are missing
MOST_OTHERS = 256
_OTHERS = (
    messages.CheckpointPart,
    messages.PartFailed,
    messages.StateHashes,
    messages.FaultReport,
    messages.LogVolume,
    messages.LogState,
    messages.WorkerWarning,
)


class Retained:
    def __init__(self) -> None:
        self._reports: deque[messages.StepReport] = deque(maxlen=MOST_REPORTS)
        self._others: deque[messages.Message] = deque(maxlen=MOST_OTHERS)
        self.hello: messages.Hello | None = None

    def note(self, message: messages.Message) -> None:
        match message:
            case messages.StepReport():  # times of operations are many, and soon of no interest
                self._reports.append(replace(message, operations=[], transfers=[]))
            case messages.Hello():
                self.hello = message
            case _ if isinstance(message, _OTHERS):
                self._others.append(message)

    def drop_before(self, step: int) -> None:
        """Of these all is on record."""
        while self._reports and self._reports[0].step < step:
            self._reports.popleft()

    def all(self) -> list[messages.Message]:
        """In the order of a run: what is known of a version is told before the step after it."""
        return [*self._others, *self._reports]
