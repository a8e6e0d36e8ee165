"""When something is written down: before whatever it leads to, and only if it is news.

What was heard and led to nothing is not written: its sender tells it again.
"""

from holdfast.control.effects import Effect, Emit, OpenRun, WriteDown
from holdfast.control.parts import CoordinatorParts
from holdfast.control.state.lifecycle import BEFORE_TRAINING
from holdfast.control.state.run import Run
from holdfast.control.takeover.remembering import Writer
from holdfast.control.takeover.snapshot import to_record
from holdfast.observability import events


def _may_come_first(effect: Effect) -> bool:
    """There is no place for records before there is a run; who drains a machine is told of it."""
    if isinstance(effect, Emit):
        return not isinstance(effect.event, events.MachineDrains)
    return isinstance(effect, OpenRun)


class Notes:
    def __init__(self, run: Run, parts: CoordinatorParts) -> None:
        self._run, self._writer = run, Writer(run, parts)
        self._written: object = None

    def noted(self, effects: list[Effect]) -> list[Effect]:
        """With what is to be written, in its place."""
        place = next((n for n, each in enumerate(effects) if not _may_come_first(each)), None)
        if place is None or self._run.phase in BEFORE_TRAINING or not self._run.plan.is_made:
            return effects
        key = self._writer.key()
        if key == self._written:
            return effects
        self._written = key
        record = to_record(self._writer.snapshot())
        return [*effects[:place], WriteDown(record), *effects[place:]]
