"""What a worker keeps of its stage's state for a loss: parts on disk, copies in memory.

The seam to the published ways to recover, on a worker's side. Ours is the one here; whoever starts
a worker hands another one in.
"""

from collections.abc import Callable

from holdfast.config import RunConfig
from holdfast.runtime.state.saving import OnFailed, SaveTimes, StageSaver
from holdfast.runtime.state.stage_state import StageState
from holdfast.storage.store import PartStore


class StateCopies:
    """In memory. Ours are none: what the others have is enough."""

    @property
    def versions(self) -> list[int]:
        """That the state could be taken back to."""
        return []

    def restart(self, version: int) -> None:
        """The state was replaced from outside: copies of what was before are of another life."""

    def committed(self, version: int) -> None:
        """The state has had so many steps now, and nothing of the next one."""

    def restore(self, version: int) -> None:
        """The state as it was. Later copies go: their steps are done again."""
        raise AssertionError(f"there is no copy of version {version}")


class StateKeeping:
    """Ours: parts of checkpoints are copied at the end of a step, at fixed intervals."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def times(self) -> SaveTimes:
        checkpoint = self._config.checkpoint
        return SaveTimes(checkpoint.every_steps, checkpoint.first_step)

    def saver(self, store: PartStore, name: str, limit_s: float, failed: OnFailed) -> StageSaver:
        return StageSaver(store, name, limit_s, failed)

    def copies(self, state: StageState, version: int) -> StateCopies:
        """``version``: of the state as it is now."""
        return StateCopies()


KeepingOf = Callable[[RunConfig], StateKeeping]
