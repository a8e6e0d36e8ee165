"""What may differ between ways to survive a failure: the seam to the published ones.

The classes here are our own way. Others override what they do otherwise; they live in a package
that this one never imports, and whoever puts a run together hands them in.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.control.decide.decision import Decision, Inventories, RestoreCopy, Situation, go_on
from holdfast.control.decide.reconfiguration import Reconfiguration
from holdfast.control.effects import Effect
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.plans import Plans
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.state.run import Run
from holdfast.control.straggler.policy import StragglerPolicy
from holdfast.protocol import messages


class RecoveryPolicy(RecoveryRules):
    """Ours: only lost work is done again, and nobody goes back while every stage has a holder."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts

    def after_loss(self, inventories: Inventories, situation: Situation) -> Decision:
        """Somebody was lost, and every stage has a holder. Pure."""
        return go_on(inventories, situation)

    def restore(self, change: Reconfiguration, decision: RestoreCopy, at_s: float) -> list[Effect]:
        """Carry out such a decision of its own."""
        raise AssertionError(f"nobody keeps copies, but: {decision.reason}")

    def on_part(self, part: messages.CheckpointPart) -> None:
        """Part of a checkpoint is on disk."""

    def on_sealed(self, step: int, at_s: float) -> list[Effect]:
        """A checkpoint is on disk, whole."""
        return []


@dataclass(frozen=True, slots=True)
class Policies:
    """Of one run."""

    recovery: Callable[[RecoveryParts], RecoveryPolicy] = RecoveryPolicy
    stragglers: Callable[[Run, Plans], StragglerPolicy] = StragglerPolicy


OURS = Policies()
