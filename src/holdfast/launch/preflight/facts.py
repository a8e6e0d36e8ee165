"""What a preflight finds out, as it is told over the wire."""

import platform
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from typing import Any

import holdfast
from holdfast.errors import ProtocolError
from holdfast.host import resources

_NOT_THERE = "none"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    machine: str
    host: str  # where others call it
    port: int
    holdfast: str
    python: str
    torch: str
    cores: int

    def told(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """From one machine to another, which was called."""

    reason: str = ""  # why it was not reached; empty: it was
    round_trip_s: float = 0.0  # the shortest
    bytes_per_s: float = 0.0

    def told(self) -> dict[str, Any]:
        return asdict(self)


def own_facts(machine: str, host: str, port: int) -> MachineFacts:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = _NOT_THERE
    versions = (holdfast.__version__, platform.python_version(), torch)
    return MachineFacts(machine, host, port, *versions, resources.usable_cores())


def machine_facts(words: dict[str, Any]) -> MachineFacts:
    return MachineFacts(**_typed(words, MachineFacts))


def link_facts(words: dict[str, Any]) -> LinkFacts:
    return LinkFacts(**_typed(words, LinkFacts))


def _typed(words: dict[str, Any], kind: type[MachineFacts] | type[LinkFacts]) -> dict[str, Any]:
    expected = {field.name: field.type for field in fields(kind)}
    if words.keys() != expected.keys():
        raise ProtocolError(f"{kind.__name__} with {sorted(words)}: expected {sorted(expected)}")
    for name, value in words.items():
        if type(value) is not expected[name]:
            raise ProtocolError(f"{kind.__name__}.{name}={value!r}: expected {expected[name]}")
    return words
