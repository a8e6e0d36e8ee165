"""What of the run is on disk, who writes there now, and when more is written.

Knows where to go on from; whether a checkpoint is whole is found out elsewhere.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from holdfast.cluster import WorkerId
from holdfast.control.state.settings import Settings
from holdfast.protocol.records import SaveRule
from holdfast.storage.manifest import partial_directory


class Saved:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sealed: int | None = None
        self._before: int | None = None  # what was sealed before it
        self._saving: set[WorkerId] = set()
        self._rules: list[SaveRule] = []

    @property
    def sealed(self) -> int | None:
        """Step of the newest whole checkpoint of this run."""
        return self._sealed

    @property
    def saving(self) -> AbstractSet[WorkerId]:
        """Those who write a part now."""
        return self._saving

    @property
    def rules(self) -> Sequence[SaveRule]:
        """As in messages.SaveAt."""
        return self._rules

    @property
    def start(self) -> tuple[str, int]:
        """Directory and step of the state to begin from, or to go back to."""
        settings = self._settings
        if self._sealed is not None:
            directory = partial_directory(settings.run_dir, self._sealed).with_suffix("")
            return str(directory), self._sealed
        resume = settings.resume
        return (resume.directory, resume.step) if resume else ("", 0)

    @property
    def advice(self) -> str:
        """How to go on after a run that was stopped."""
        settings = self._settings
        if self._sealed is not None:
            return f"Go on from the last checkpoint with: {settings.resume_with(settings.run_dir)}"
        if settings.resume:
            command = settings.resume_with(settings.resume.directory)
            return f"Go on from the same checkpoint with: {command}"
        return "No checkpoint was written yet: start again (checkpoint.every_steps sets how often)"

    def seal(self, step: int) -> None:
        self._before, self._sealed = self._sealed, step

    def unseal(self, step: int) -> None:
        """It could not be sealed after all."""
        if self._sealed == step:
            self._sealed = self._before

    def note_saving(self, worker: WorkerId, *, is_saving: bool) -> None:
        (self._saving.add if is_saving else self._saving.discard)(worker)

    def add_rule(self, rule: SaveRule) -> None:
        self._rules.append(rule)
