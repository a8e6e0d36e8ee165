"""Where checkpoints are kept if not in the run directory: an address such as s3://bucket/run.

An address has a closed form, like any name: no part of it is empty, begins with a dot or holds a
secret.
"""

import re
from typing import NamedTuple

from holdfast import names
from holdfast.errors import ConfigError

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._=+-]*"
_ADDRESS = rf"(?:s3|gs|az)://{_SEGMENT}(?:/{_SEGMENT})*|file://(?:/{_SEGMENT})+"
_STEP = "/checkpoints/"
ADDRESS = names.Form(
    "an address, e.g. s3://bucket/run or file:///shared/run",
    re.compile(rf"(?=.{{1,1000}}\Z)(?:{_ADDRESS})"),
)


class At(NamedTuple):
    """What an address names."""

    address: str  # of a run's checkpoints
    checkpoint: str  # the name of one of them; empty: all of them


def is_address(place: object) -> bool:
    """Or is meant to be one: no directory is."""
    return isinstance(place, str) and "://" in place


def parse_address(place: str) -> At:
    """ConfigError: it is none that can be used."""
    plain = place.rstrip("/")
    if not ADDRESS.fits(plain):
        raise ConfigError(f"{place}: expected {ADDRESS.what}")
    address, _, name = plain.rpartition(_STEP)
    return At(address, name) if address and names.CHECKPOINT.fits(name) else At(plain, "")


def checkpoint_at(address: str, step: int) -> str:
    return f"{address}{_STEP}{names.checkpoint_name(step)}"
