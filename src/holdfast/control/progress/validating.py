"""What is done when a validation is over: it is told, the best is kept, the run may end early.

All members stand still meanwhile, so the version that was validated can still be saved.
"""

from holdfast.control.effects import Effect, Emit, PointToBest, Send
from holdfast.control.progress.checkpoints import Checkpoints
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.validations import NONE, metric_names, num_validated
from holdfast.observability import events
from holdfast.protocol import messages


class Validating:
    def __init__(self, run: Run, checkpoints: Checkpoints) -> None:
        self._run, self._checkpoints = run, checkpoints
        self._asked: tuple[int, int] | None = None  # epoch and version that all were told to save
        self._pointed: int | None = None  # version that was written down as the best

    def on_scores(self, told: messages.Scores) -> None:
        if self._run.phase is RunPhase.TRAINING:
            self._run.validations.note(told.step, told.scores)

    def next(self, next_step: int, since_s: float, at_s: float) -> list[Effect]:
        """While nothing else is under way. ``next_step``: all before it are finished."""
        return [*self._point(), *self._conclude(next_step, since_s, at_s)]

    def _point(self) -> list[Effect]:
        """Once more after a take-over: whoever led before may not have come to it."""
        best, saved = self._run.validations.best, self._run.saved.sealed
        if best is None or best == self._pointed or saved is None or saved < best:
            return []
        self._pointed = best
        name = self._run.config.validation.judged_by
        found = self._run.validations.so_far.best
        assert found is not None
        return [PointToBest(best, name, found.value(name))]

    def _conclude(self, next_step: int, since_s: float, at_s: float) -> list[Effect]:
        run, validations = self._run, self._run.validations
        version = validations.version
        if version == NONE or next_step < version:
            return []
        effects: list[Effect] = []
        traits = run.roster.traits
        number = num_validated(traits, run.config)
        if validations.conclude(metric_names(traits), number) is not None:
            effects.append(Emit(self._told(at_s - since_s, at_s)))
        if not validations.found or validations.found[-1].step != version:
            return []  # scores are missing
        if why := validations.why_stopped:
            return effects + self._stop(version, why, at_s)
        if validations.best == version and not self._is_kept(version):
            return effects + self._ask_to_save(version)
        effects += self._point()
        validations.release()
        go_on = messages.GoOn(epoch=run.epoch, step=version)
        return effects + [Send(member, go_on) for member in sorted(run.stages)]

    def _told(self, took_s: float, at_s: float) -> events.Validated:
        one, (best, _) = self._run.validations.found[-1], self._run.validations.so_far
        return events.Validated(
            at_s=at_s,
            step=one.step,
            loss=one.loss,
            metrics=one.metrics,
            is_best=best == one,
            took_s=took_s,
        )

    def _stop(self, version: int, why: str, at_s: float) -> list[Effect]:
        """They stand still until they are told that this is the last step."""
        if not self._run.ending.ask_in_good_time(f"stopped early at step {version}: {why}", at_s):
            return []
        return [Emit(events.StoppedEarly(at_s=at_s, step=version, reason=why))]

    def _is_kept(self, version: int) -> bool:
        """Or cannot be; that has been told."""
        return self._run.saved.sealed == version or self._checkpoints.was_tried(version)

    def _ask_to_save(self, version: int) -> list[Effect]:
        run, asked = self._run, (self._run.epoch, version)
        if self._asked == asked:
            return []
        self._asked = asked
        save = messages.SaveHere(epoch=run.epoch, step=version)
        return [Send(member, save) for member in sorted(run.stages)]
