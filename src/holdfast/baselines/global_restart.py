"""Recovery as in common launchers: a loss ends all workers, and all start from a checkpoint."""

from holdfast.control.reconfigure.policies import RecoveryPolicy


class GlobalRestart(RecoveryPolicy):
    ends_all = True
    replaces_lost = False
    may_leave_out = False
