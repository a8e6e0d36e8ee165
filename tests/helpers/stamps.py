"""Stamps for tests in which nobody shakes hands."""

from holdfast.auth.stamps import Stamps

_KEYS = (b"caller" * 5 + b"..", b"answer" * 5 + b"..")


def stamps_of_both() -> tuple[Stamps, Stamps]:
    """Of the two ends of one connection."""
    return Stamps(*_KEYS), Stamps(*reversed(_KEYS))
