"""Types of message fields that are checked when a message is read, beyond being text or numbers.

Whatever may become part of a path, of a command or of an address has one of these.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from holdfast import addresses, names
from holdfast.checkpoint_address import ADDRESS
from holdfast.names import Form


class Rule(Protocol):
    """What a value must be: a Form of names, or a Check."""

    @property
    def what(self) -> str: ...

    def fits(self, value: object, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    fits: Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a whole number, or of one with a fraction: no NaN then, and no sum that overflows."""

    what: str
    kind: type
    least: float
    most: float

    def fits(self, value: object, /) -> bool:
        return type(value) is self.kind and self.least <= value <= self.most  # type: ignore[operator]


def _whole(least: int, most: int) -> Bounds:
    return Bounds(f"{least} to {most}", int, least, most)


def _finite(least: float, most: float) -> Bounds:
    return Bounds(f"a number from {least:g} to {most:g}", float, least, most)


def _or_empty(rule: Rule) -> Check:
    return Check(f"{rule.what}, or empty", lambda value: value == "" or rule.fits(value))


def _any_of(*rules: Rule) -> Check:
    what = " or ".join(rule.what for rule in rules)
    return Check(what, lambda value: any(rule.fits(value) for rule in rules))


def _at_most(length: int) -> Check:
    what = f"at most {length} characters"
    return Check(what, lambda value: isinstance(value, str) and len(value) <= length)


PATH = Form(
    "an absolute path without '.', '..' or '//'",
    re.compile(r"(?=.{1,4000}\Z)/(?:(?!\.{1,2}(?:/|\Z))[^/\0]+(?:/(?!\Z)|\Z))*", re.DOTALL),
)
PIECE_BYTES = 64 << 10  # of a file that is sent in pieces: the others wait for so long at most
_BASE64 = Form(
    f"at most {PIECE_BYTES} bytes in base64",
    re.compile(
        rf"(?=.{{0,{-(-PIECE_BYTES // 3) * 4}}}\Z)"
        r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
    ),
)
_HOST = Check(addresses.HOST, addresses.is_host)
_STAGE = _whole(0, names.MOST_STAGE)

_MOST = 1 << 53  # a whole number that other languages read without loss
_LONG_S = 1e12

WorkerName = Annotated[str, names.WORKER]
WorkerOrNone = Annotated[str, _or_empty(names.WORKER)]
Sha256 = Annotated[str, names.SHA256]
Sha256OrNone = Annotated[str, _or_empty(names.SHA256)]
Hash = Annotated[str, names.HASH]
MachineName = Annotated[str, names.MACHINE]
Slots = Annotated[int, _whole(0, names.MOST_SLOTS)]
Base64 = Annotated[str, _BASE64]
Layer = Annotated[str, names.LAYER]  # as a key
Operation = Annotated[str, names.OPERATION]
PartName = Annotated[str, names.PART]
PartFile = Annotated[str, names.PART_FILE]
StateOrNone = Annotated[str, _or_empty(_any_of(names.CHECKPOINT, names.REBUILT, names.RESUMED))]
Rebuilt = Annotated[str, names.REBUILT]
RunId = Annotated[str, names.RUN_ID]
Label = Annotated[str, _at_most(4000)]  # a word or a few, for people or to be compared
StageNumber = Annotated[int, _STAGE]
Step = Annotated[int, _whole(0, names.MOST_STEP)]
StepOrBefore = Annotated[int, _whole(-2, names.MOST_STEP)]  # below 0: before the first one
AttemptNumber = Annotated[int, _whole(0, 1 << 31)]
Microbatch = Annotated[int, _whole(0, 1 << 31)]
MicrobatchOrNone = Annotated[int, _whole(-1, 1 << 31)]
Number = Annotated[int, _whole(0, _MOST)]  # of layers, bytes, epochs
ProgressNumber = Annotated[int, _whole(0, 3)]  # planner.lineage.MicrobatchProgress
NumberOrNone = Annotated[int, _whole(-1, _MOST)]
Pid = Annotated[int, _whole(1, 1 << 31)]
PidOrNone = Annotated[int, _whole(0, 1 << 31)]
Host = Annotated[str, _or_empty(_HOST)]
Port = Annotated[int, _whole(0, 65535)]
ExitCode = Annotated[int, _whole(0, 255)]
ExitStatus = Annotated[int, _whole(-255, 255)]  # below 0: the number of a signal
Seconds = Annotated[float, _finite(0.0, _LONG_S)]
# Of two clocks that differ by an offset.
Difference = Annotated[float, _finite(-_LONG_S, _LONG_S)]
# Of the user's own. Only the coordinator says these, to those to whom it has proven who it is.
Path = Annotated[str, PATH]
PlaceOrNone = Annotated[str, _or_empty(_any_of(PATH, ADDRESS))]
