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
        self._unsure: set[int] = set()  # steps whose report was given to somebody to pass on
        self._others: deque[messages.Message] = deque(maxlen=MOST_OTHERS)
        self.hello: messages.Hello | None = None

    def note(self, message: messages.Message) -> None:
        match message:
            case messages.StepReport():  # times of operations are many, and soon of no interest
                self._forget_from(message.step)
                self._reports.append(replace(message, operations=[], transfers=[]))
            case messages.Hello():
                self.hello = message
            case _ if isinstance(message, _OTHERS):
                self._others.append(message)

    def _forget_from(self, step: int) -> None:
        """All went back: what was told of steps that are run once more is void."""
        while self._reports and self._reports[-1].step >= step:
            self._unsure.discard(self._reports.pop().step)

    def acknowledged(self, next_step: int, heard: int) -> None:
        """Of steps before ``next_step`` all is on record; reports of those before ``heard`` have
        come, though whoever takes over may not know them."""
        while self._reports and self._reports[0].step < next_step:
            self._reports.popleft()
        self._unsure = {step for step in self._unsure if step >= heard}

    def passed_on(self, step: int) -> None:
        """Whether its report has arrived is not known."""
        self._unsure.add(step)

    def take_unsure(self) -> list[messages.StepReport]:
        """To be told again, in order, before what must come after them."""
        unsure, self._unsure = self._unsure, set()
        return [one for one in self._reports if one.step in unsure] if unsure else []

    def all(self) -> list[messages.Message]:
        """In the order of a run: what is known of a version is told before the step after it."""
        return [*self._others, *self._reports]
