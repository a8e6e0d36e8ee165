"""Durations as people write them: ``90s``, ``20m``, ``2h``, ``30d``, or plain seconds."""

import re
from math import isfinite

from holdfast.errors import ConfigError

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(name: str, text: str, *, zero: bool = False) -> float:
    """Seconds; ``name`` is whose value it is, for the message."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d|)\s*", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else -1.0
    if not isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        raise ConfigError(f"{name} {text}: expected a time {least}, e.g. 90s, 20m, 2h or 30d")
    return seconds


def duration_text(seconds: float) -> str:
    """The largest unit in which it is a short number."""
    for unit in ("d", "h", "m"):
        value = seconds / _UNITS_S[unit]
        if value >= 1:
            return f"{value:.3g}{unit}"
    return f"{seconds:.3g}s"
