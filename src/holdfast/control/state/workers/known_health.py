"""Who and what is slow, as detection has found it. All others are as they should be."""

from holdfast.detection.diagnosis import Health

HEALTHY = Health({}, {})


class KnownHealth:
    def __init__(self) -> None:
        self._now = HEALTHY

    @property
    def now(self) -> Health:
        return self._now

    def note(self, health: Health) -> None:
        self._now = health
