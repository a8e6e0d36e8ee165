"""What of the run is on disk, who writes there now, and when more is written.

Knows where to go on from; whether a checkpoint is whole is found out elsewhere.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from holdfast.cluster import WorkerId
from holdfast.control.state.settings import Settings
from holdfast.protocol.records import SaveRule
from holdfast.storage.run_paths import checkpoint_place


class Saved:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sealed: int | None = None
        self._before: int | None = None  # what was sealed before it
        self._awaited: int | None = None  # is being sealed, far away
        self._saving: set[WorkerId] = set()
        self._rules: list[SaveRule] = []

    @property
    def sealed(self) -> int | None:
        """Step of the newest whole checkpoint of this run."""
        return self._sealed

    @property
    def newest(self) -> int:
        """The same, or one that is being sealed now; 0: none."""
        return max(self._sealed or 0, self._awaited or 0)

    @property
    def seals_at_once(self) -> bool:
        """What is to be sealed counts as whole: it is so before anybody is told anything else."""
        return not self._settings.config.checkpoint.dir

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
            address = settings.config.checkpoint.dir
            return checkpoint_place(settings.run_dir, address, self._sealed), self._sealed
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

    def recall(self, sealed: int | None, rules: Sequence[SaveRule]) -> None:
        """As another coordinator has left it; ``sealed``: as it is found on disk."""
        self._sealed, self._rules = sealed, list(rules)

    def seal(self, step: int) -> None:
        if self.seals_at_once:
            self._before, self._sealed = self._sealed, step
        else:
            self._awaited = step

    def confirm(self, step: int) -> bool:
        """It is whole. False: nobody waits for it any more, all have gone back before it."""
        if self.seals_at_once:
            return True
        if self._awaited != step:
            return False
        self._sealed, self._awaited = step, None
        return True

    def unseal(self, step: int) -> bool:
        """It could not be sealed after all. False: nobody waits for it any more."""
        if not self.seals_at_once:
            was_awaited, self._awaited = self._awaited == step, None
            return was_awaited
        if self._sealed == step:
            self._sealed = self._before
        return True

    def begin_anew(self) -> None:
        """All go back to ``start``: whatever is sealed later, it stays that one."""
        self._awaited = None

    def note_saving(self, worker: WorkerId, *, is_saving: bool) -> None:
        (self._saving.add if is_saving else self._saving.discard)(worker)

    def add_rule(self, rule: SaveRule) -> None:
        self._rules.append(rule)
