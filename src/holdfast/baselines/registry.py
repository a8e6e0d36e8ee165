"""Which way a run survives, on the coordinator's side: found by the names of settings. No torch."""

from collections.abc import Callable

from holdfast.baselines.committing import Committing
from holdfast.baselines.falcon import Falcon
from holdfast.baselines.global_restart import GlobalRestart
from holdfast.baselines.save_interval import CheckFreq
from holdfast.baselines.swift import Swift
from holdfast.config import RunConfig
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.plans import Plans
from holdfast.control.reconfigure.policies import Policies, RecoveryPolicy
from holdfast.control.state.run import Run
from holdfast.control.straggler.policy import StragglerPolicy

RECOVERY: dict[str, Callable[[RecoveryParts], RecoveryPolicy]] = {
    "holdfast": RecoveryPolicy,
    "swift": Swift,
    "checkfreq": CheckFreq,
    "commit": Committing,
    "global": GlobalRestart,
}
STRAGGLERS: dict[str, Callable[[Run, Plans], StragglerPolicy]] = {
    "holdfast": StragglerPolicy,
    "observe": StragglerPolicy,
    "off": StragglerPolicy,
    "falcon": Falcon,
}


def policies_of(config: RunConfig) -> Policies:
    return Policies(RECOVERY[config.recovery.mode], STRAGGLERS[config.mitigation.mode])
