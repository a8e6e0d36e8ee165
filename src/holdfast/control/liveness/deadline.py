"""How long a run that is to end early may take to end its steps and to save them.

What is not saved is lost, so nobody is hurried who saves, but for ``checkpoint.write_limit_s``: a
second signal still ends all at once.
"""

from holdfast.control.state.run import Run
from holdfast.protocol import messages


class Deadline:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._part_s = 0.0  # the longest that a part took
        self._saved_s = 0.0  # when somebody was last seen to save

    def note_part(self, part: messages.CheckpointPart) -> None:
        self._part_s = max(self._part_s, part.took_s)

    def is_over(self, at_s: float) -> bool:
        """Counted from the signal, or from when nobody saves any more."""
        run = self._run
        asked_s = run.ending.early_since_s
        if asked_s is None:
            return False
        if run.saved.saving & run.stages.keys():
            self._saved_s = at_s
        if at_s - asked_s > run.config.checkpoint.write_limit_s:
            return True
        since_s = max(asked_s, self._saved_s)
        return at_s - since_s > run.timeouts.interrupt_s + self._part_s
