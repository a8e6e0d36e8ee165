"""SWIFT: a lost stage is replayed from the log by whoever replaces its holder, without help."""

from holdfast.control.reconfigure.policies import RecoveryPolicy


class Swift(RecoveryPolicy):
    replaces_lost = False
    replays_alone = True
