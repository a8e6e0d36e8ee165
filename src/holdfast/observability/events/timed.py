"""What all events have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    at_s: float  # when it happened
