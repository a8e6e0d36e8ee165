"""Copies of a stage's state in memory, every few steps: all that going back to one needs.

Which version all go back to is decided by the coordinator. Nothing here outlives the process.
"""

from torch import Tensor
from typing_extensions import override

from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.state.state_keeping import StateCopies, StateKeeping

_NUM_KEPT = 2  # stages may be a step apart, and then they are a copy apart


class MemoryCommits(StateCopies):
    def __init__(self, state: StageState, every: int, version: int) -> None:
        """``version``: of the state as it is now."""
        self._state, self._every = state, every
        self._copies: dict[int, dict[str, Tensor]] = {}
        self.copied_bytes = 0  # so far, in all
        self.restart(version)

    @property
    @override
    def versions(self) -> list[int]:
        return sorted(self._copies)

    @override
    def restart(self, version: int) -> None:
        self._copies.clear()
        self._keep(version)

    @override
    def committed(self, version: int) -> None:
        if version % self._every == 0:
            self._keep(version)

    @override
    def restore(self, version: int) -> None:
        for later in [kept for kept in self._copies if kept > version]:
            del self._copies[later]
        # The optimizer takes the tensors themselves, and the copy may be needed again.
        tensors = {name: tensor.clone() for name, tensor in self._copies[version].items()}
        self._state.load(tensors, f"the copy in memory of step {version}")

    def _keep(self, version: int) -> None:
        self._copies[version] = copy = self._state.tensors()
        self.copied_bytes += sum(tensor.nbytes for tensor in copy.values())
        for old in self.versions[:-_NUM_KEPT]:
            del self._copies[old]


class KeepsCommits(StateKeeping):
    @override
    def copies(self, state: StageState, version: int) -> StateCopies:
        return MemoryCommits(state, self._config.recovery.commit_every, version)
