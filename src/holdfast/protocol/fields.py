"""Types of message fields that are checked when a message is read, beyond being text or numbers.

Whatever may become part of a path, of a command or of an address has one of these.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from holdfast import names
from holdfast.names import Form


@dataclass(frozen=True, slots=True)
class Bounds:
    least: int
    most: int

    def fits(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most

    @property
    def what(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class OrEmpty:
    form: "Form | AnyOf"

    def fits(self, value: object) -> bool:
        return value == "" or self.form.fits(value)

    @property
    def what(self) -> str:
        return f"{self.form.what}, or empty"


@dataclass(frozen=True, slots=True)
class AnyOf:
    forms: tuple[Form, ...]

    def fits(self, value: object) -> bool:
        return any(form.fits(value) for form in self.forms)

    @property
    def what(self) -> str:
        return " or ".join(form.what for form in self.forms)


@dataclass(frozen=True, slots=True)
class Finite:
    """Of a number with a fraction: no NaN, no infinity, nothing that overflows in a sum."""

    least: float
    most: float

    def fits(self, value: object) -> bool:
        return type(value) is float and self.least <= value <= self.most

    @property
    def what(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """Characters of a text."""

    length: int

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= self.length

    @property
    def what(self) -> str:
        return f"at most {self.length} characters"


PATH = Form(
    "an absolute path without '.', '..' or '//'",
    re.compile(r"(?=.{1,4000}\Z)/(?:(?!\.{1,2}(?:/|\Z))[^/\0]+(?:/(?!\Z)|\Z))*", re.DOTALL),
)
_HOST = Form("a host", re.compile(r"[A-Za-z0-9.:_-]{1,255}"))
_STAGE = Bounds(0, names.MOST_STAGE)

_MOST = 1 << 53  # a whole number that other languages read without loss
_LONG_S = 1e12

Worker = Annotated[str, names.WORKER]
WorkerOrNone = Annotated[str, OrEmpty(names.WORKER)]
Sha256 = Annotated[str, names.SHA256]
Sha256OrNone = Annotated[str, OrEmpty(names.SHA256)]
Hash = Annotated[str, names.HASH]
Layer = Annotated[str, names.LAYER]  # as a key
Operation = Annotated[str, names.OPERATION]
PartName = Annotated[str, names.PART]
PartFile = Annotated[str, names.PART_FILE]
StateOrNone = Annotated[str, OrEmpty(AnyOf((names.CHECKPOINT, names.REBUILT, names.RESUMED)))]
Rebuilt = Annotated[str, names.REBUILT]
RunId = Annotated[str, names.RUN_ID]
Label = Annotated[str, AtMost(4000)]  # a word or a few, for people or to be compared
Stage = Annotated[int, _STAGE]
Step = Annotated[int, Bounds(0, names.MOST_STEP)]
StepOrBefore = Annotated[int, Bounds(-2, names.MOST_STEP)]  # below 0: before the first one
Attempt = Annotated[int, Bounds(0, 1 << 31)]
Microbatch = Annotated[int, Bounds(0, 1 << 31)]
MicrobatchOrNone = Annotated[int, Bounds(-1, 1 << 31)]
Number = Annotated[int, Bounds(0, _MOST)]  # of layers, bytes, epochs
Progress = Annotated[int, Bounds(0, 3)]  # planner.lineage.Progress
NumberOrNone = Annotated[int, Bounds(-1, _MOST)]
Pid = Annotated[int, Bounds(1, 1 << 31)]
PidOrNone = Annotated[int, Bounds(0, 1 << 31)]
Host = Annotated[str, OrEmpty(_HOST)]
Port = Annotated[int, Bounds(0, 65535)]
ExitCode = Annotated[int, Bounds(0, 255)]
ExitStatus = Annotated[int, Bounds(-255, 255)]  # below 0: the number of a signal
Seconds = Annotated[float, Finite(0.0, _LONG_S)]
# Of two clocks that differ by an offset.
Difference = Annotated[float, Finite(-_LONG_S, _LONG_S)]
# Of the user's own. Only the coordinator says these, to those to whom it has proven who it is.
Path = Annotated[str, PATH]
PathOrNone = Annotated[str, OrEmpty(PATH)]
