"""Which way a run survives, on a worker's side: found by the names of settings. Loads torch."""

from holdfast.baselines.memory_commit import KeepsCommits
from holdfast.baselines.two_phase import SavesInTwoPhases
from holdfast.config import RunConfig
from holdfast.runtime.state.state_keeping import KeepingOf, StateKeeping

KEEPING: dict[str, KeepingOf] = {
    "holdfast": StateKeeping,
    "swift": StateKeeping,
    "checkfreq": SavesInTwoPhases,
    "commit": KeepsCommits,
    "global": StateKeeping,
}


def keeping_of(config: RunConfig) -> StateKeeping:
    return KEEPING[config.recovery.mode](config)
