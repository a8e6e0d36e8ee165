"""The parts of a coordinator that every way to go on after a change works with."""

from typing import NamedTuple

from holdfast.control.inventory.losses import Losses, ProgressTracker
from holdfast.control.join.joining import Joining
from holdfast.control.plans import Plans
from holdfast.control.progress.reports import Reports
from holdfast.control.state.run import Run


class RecoveryParts(NamedTuple):
    run: Run
    tracker: ProgressTracker
    losses: Losses
    plans: Plans
    reports: Reports
    joining: Joining
