"""Values that a setting may have: what is refused, and how sizes are written."""

import re

from holdfast.errors import ConfigError

MAX_LIMIT_S = 1_000_000
METRIC = re.compile(r"[A-Za-z0-9_.@/-]{1,64}")  # a name
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)B")
_MAX_BYTES = 10**18
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def require(good: bool, key: str, value: object, expected: str) -> None:
    if not good:
        raise ConfigError(f"{key}={value}: {expected}")


def at_least(least: int, key: str, value: float, expected: str = "") -> None:
    require(value >= least, key, value, expected or f"must be at least {least}")


def parse_size(key: str, text: str) -> int:
    """``2GB`` -> bytes; units of ten, as disks are sold."""
    match = _SIZE.fullmatch(text.strip())
    require(match is not None, key, text, "write a size as 500MB, 2GB or 1.5TB")
    assert match is not None
    num_bytes = int(float(match[1]) * _UNIT_BYTES[match[2]])
    require(0 < num_bytes <= _MAX_BYTES, key, text, "must be above 0 and at most 1,000,000TB")
    return num_bytes
