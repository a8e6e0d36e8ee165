"""How often checkpoints are taken, from what steps and checkpoints cost: CheckFreq's rule.

First a profile: some steps and one checkpoint are timed. Then the interval is as short as
writing allows, and is made longer as long as checkpoints slow training down too much.
"""

import math
from collections.abc import Sequence
from statistics import mean

from typing_extensions import override

from holdfast.baselines.global_restart import GlobalRestart
from holdfast.config import RunConfig
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import SaveRule

_PROFILED_STEPS = 100  # before the first checkpoint, if not set
_SKIPPED = 5  # the first steps compile and warm up
_LEAST_MEASURED = 5  # steps
_LONGER = 2  # steps more, if it was too expensive
_AHEAD = 2  # steps, at least, before a new interval begins: everyone must have heard of it
_HEARD_S = 0.2  # by then everyone has


def interval(step_s: float, snapshot_s: float, write_s: float) -> int:
    """Steps between checkpoints: the next one begins when the one before is on disk.

    ``write_s``: of the whole checkpoint, its copy included; the copy holds up training itself.
    """
    return max(math.ceil((write_s - snapshot_s) / step_s), 1)


def num_profiled(config: RunConfig) -> int:
    """Steps up to the first checkpoint."""
    return config.checkpoint.every_steps or _PROFILED_STEPS


class CheckFreq(GlobalRestart):
    def __init__(self, parts: RecoveryParts) -> None:
        super().__init__(parts)
        self._run, self._reports = parts.run, parts.reports
        self._written: dict[int, list[messages.CheckpointPart]] = {}  # by step
        self._decided = -1  # the newest checkpoint that was looked at
        self._step_s = 0.0  # without checkpoints; 0: no profile yet
        self._seen = (0, 0)  # epoch, number of steps timed, when it was looked at

    @override
    def on_part(self, part: messages.CheckpointPart) -> None:
        if part.step > self._decided:
            self._written.setdefault(part.step, []).append(part)

    @override
    def on_sealed(self, step: int, at_s: float) -> list[Effect]:
        if step not in self._written:
            return []
        self._decided = step
        whole = self._written.pop(step)
        self._written = {later: parts for later, parts in self._written.items() if later > step}
        return self._tune(at_s) if self._step_s else self._profile(whole, at_s)

    def _profile(self, parts: Sequence[messages.CheckpointPart], at_s: float) -> list[Effect]:
        run = self._run
        undisturbed = run.times.steps_s[_SKIPPED : num_profiled(run.config)]
        steps_s = (
            undisturbed if len(undisturbed) >= _LEAST_MEASURED else run.times.steps_s[_SKIPPED:]
        )
        if len(steps_s) < _LEAST_MEASURED:
            return []
        self._step_s = mean(steps_s)
        snapshot_s = max(part.copy_s for part in parts)
        write_s = max(part.took_s for part in parts)
        reason = (
            f"a step takes {self._step_s:.4g} s, the copy {snapshot_s:.4g} s, the whole "
            f"checkpoint {write_s:.4g} s"
        )
        return self._set(interval(self._step_s, snapshot_s, write_s), reason, at_s)

    def _tune(self, at_s: float) -> list[Effect]:
        run = self._run
        epoch, num_seen = self._seen
        steps_s = run.times.steps_s[num_seen:]
        self._seen = (run.epoch, len(run.times.steps_s))
        if epoch != run.epoch or not steps_s:
            return []  # a failure was among them
        excess = mean(steps_s) / self._step_s - 1
        if excess <= run.config.recovery.overhead:
            return []
        every = run.saved.rules[-1].every
        reason = f"steps took {excess:.1%} longer than without checkpoints"
        return self._set(every + _LONGER, reason, at_s)

    def _set(self, every: int, reason: str, at_s: float) -> list[Effect]:
        run = self._run
        ahead = max(_AHEAD, math.ceil(_HEARD_S / self._step_s))
        first = max(self._decided + every, self._reports.next_step + ahead)
        if run.saved.rules:
            first = max(first, run.saved.rules[-1].first + 1)
        run.saved.add_rule(SaveRule(first, every))
        self._seen = (run.epoch, len(run.times.steps_s))
        order = messages.SaveAt(rules=list(run.saved.rules))
        chosen = events.IntervalChosen(at_s=at_s, first=first, every=every, reason=reason)
        return [Emit(chosen), *(Send(worker, order) for worker in run.membership.live)]
