"""Steps with NaN or Inf, in a gradient or in the loss: how many in a row are too many.

A step whose gradient has it is left out and changes nothing, so a model that has diverged stays as
it is: only other data could help. The state is worth a checkpoint. With fp16 a loss scale that
is too high looks the same, and is halved: that counts only when it cannot be any lower.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.control.state.run import Run
from holdfast.errors import HoldfastError
from holdfast.protocol import messages

_CURE = "lower the learning rate, set Job.clip_norm, or look at the data of these steps"


class NonfiniteCount(NamedTuple):
    first: int
    last: int
    where: str
    num_good: int
    num_trained: int
    num_rescaled: int
    num_empty: int
    reason: str


class Nonfinite:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._first = self._last = -1  # steps of the present row; -1: the last step was good
        self._where = ""  # it was seen first
        self._num_good = self._num_trained = 0
        self._num_rescaled = 0  # steps that were left out because of the loss scale alone
        self._num_empty = 0  # ... because no micro-batch had any weight: neither good nor bad
        self.reason = ""  # why the run is to end; empty: it goes on

    def recall(self, known: NonfiniteCount) -> None:
        """As another coordinator has left it."""
        self._first, self._last, self._where = known.first, known.last, known.where
        self._num_good, self._num_trained = known.num_good, known.num_trained
        self._num_rescaled, self._num_empty = known.num_rescaled, known.num_empty
        self.reason = known.reason

    @property
    def count(self) -> NonfiniteCount:
        row = self._first, self._last, self._where
        steps = self._num_good, self._num_trained, self._num_rescaled, self._num_empty
        return NonfiniteCount(*row, *steps, self.reason)

    def note(
        self,
        step: int,
        reports: Mapping[WorkerId, messages.StepReport],
        losses: Sequence[float],
        *,
        empty: bool = False,
    ) -> None:
        if empty:
            self._num_empty += 1
            return
        skipped = [report for report in reports.values() if report.skipped]
        self._num_trained += not skipped
        if all(map(math.isfinite, losses)) and not any(one.loss_scale <= 1 for one in skipped):
            self._num_good += not skipped
            self._num_rescaled += bool(skipped)
            self._first = self._last = -1
            return
        if self._first < 0 or step != self._last + 1:
            self._first = step
            self._where = self._seen_in(reports, losses)
        self._last = step
        self.reason = self.reason or self._too_many()

    def _too_many(self) -> str:
        """Kept when it is found: a good step may be counted before anybody asks."""
        gradients = self._run.config.gradients
        limit, setting = gradients.nonfinite_limit, f"nonfinite_limit={gradients.nonfinite_limit}"
        if gradients.nonfinite == "stop":
            limit, setting = 1, "nonfinite=stop"
        if not limit or self._last - self._first + 1 < limit:
            return ""
        return f"{self._story()} (gradients.{setting}): {_CURE}"

    def check_end(self, advice: str) -> None:
        """A run of a few steps that were all bad is no success."""
        if self._num_empty and not (self._num_trained or self._num_rescaled or self._first >= 0):
            raise HoldfastError(
                "Job.weight was 0 for every micro-batch of every step: nothing was trained; look "
                f"at the targets, or give each micro-batch more samples. {advice}"
            )
        if self._num_rescaled and not self._num_trained:
            raise HoldfastError(
                "the loss scale was too high in every step: nothing was trained; lower "
                f"train.loss_scale, or train for more steps. {advice}"
            )
        if self._first >= 0 and not self._num_good:
            result = "no loss was a number" if self._num_trained else "nothing was trained"
            raise HoldfastError(f"{self._story()}: {result}; {_CURE}. {advice}")

    def _story(self) -> str:
        first, last = self._first + 1, self._last + 1
        steps = f"step {first}" if first == last else f"all of steps {first} to {last}"
        return f"NaN or Inf in {steps}, first in {self._where}"

    def _seen_in(
        self, reports: Mapping[WorkerId, messages.StepReport], losses: Sequence[float]
    ) -> str:
        """Gradients go backwards: it began in the last stage that has it, or in the loss."""
        if not all(map(math.isfinite, losses)):
            return "the loss"
        stages = [self._run.stages.get(w) for w, report in reports.items() if report.nonfinite]
        found = [stage for stage in stages if stage is not None]
        if not found:
            return "the norm"
        boundaries = (0, *self._run.plan.cut.layers)
        return (
            f"the gradient of stage {max(found)}, which begins with layer {boundaries[max(found)]}"
        )
