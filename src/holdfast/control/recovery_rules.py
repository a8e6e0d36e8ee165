"""What a way to recover does otherwise, as plain facts. Says nothing of how."""


class RecoveryRules:
    """Ours; others override."""

    ends_all = False
    """A loss ends every worker: all are started again, from the last checkpoint."""
    replaces_lost = True
    """Lost workers are started again while the others go on."""
    replays_alone = False
    """Whoever is to hold a lost stage replays it, and nobody helps."""
    may_leave_out = True
    """A straggler may be left out: the others go on without going back."""
