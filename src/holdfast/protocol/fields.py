"""Types of message fields that are checked when a message is read, beyond being text or numbers.

Whatever may become part of a path, of a command or of an address has one of these.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

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
    form: Form

    def fits(self, value: object) -> bool:
        return value == "" or self.form.fits(value)

    @property
    def what(self) -> str:
        return f"{self.form.what}, or empty"


@dataclass(frozen=True, slots=True)
class Entries:
    """Of a dict that has those of ``forms`` among others, or is empty."""

    forms: tuple[tuple[str, Form | OrEmpty], ...]
    lists: tuple[tuple[str, Form | Bounds], ...]

    def fits(self, value: object) -> bool:
        if value == {}:
            return True
        return (
            isinstance(value, dict)
            and all(form.fits(value.get(name)) for name, form in self.forms)
            and all(_all_fit(value.get(name), form) for name, form in self.lists)
        )

    @property
    def what(self) -> str:
        return ", ".join(f"{name}: {form.what}" for name, form in (*self.forms, *self.lists))


def _all_fit(values: object, form: Form | Bounds) -> bool:
    return isinstance(values, list) and all(form.fits(value) for value in values)


Check = Form | Bounds | OrEmpty | Entries

_PATH = Form("an absolute path", re.compile(r"/[^\0]{0,4000}"))
_HOST = Form("a host", re.compile(r"[A-Za-z0-9.:_-]{1,255}"))
_STAGE = Bounds(0, names.MOST_STAGE)

Worker = Annotated[str, names.WORKER]
WorkerOrNone = Annotated[str, OrEmpty(names.WORKER)]
Sha256 = Annotated[str, names.SHA256]
Sha256OrNone = Annotated[str, OrEmpty(names.SHA256)]
PartName = Annotated[str, names.PART]
PartFile = Annotated[str, names.PART_FILE]
Stage = Annotated[int, _STAGE]
Step = Annotated[int, Bounds(0, names.MOST_STEP)]
Number = Annotated[int, Bounds(0, 1 << 53)]  # of layers, bytes, epochs
Pid = Annotated[int, Bounds(1, 1 << 31)]
Host = Annotated[str, OrEmpty(_HOST)]
Port = Annotated[int, Bounds(0, 65535)]
ExitCode = Annotated[int, Bounds(0, 255)]
# Only the coordinator says these, to those to whom it has proven who it is.
Path = Annotated[str, _PATH]
PathOrNone = Annotated[str, OrEmpty(_PATH)]
LogOrder = Annotated[
    dict[str, Any],
    Entries(
        forms=(("run", names.RUN_ID), ("dir", _PATH), ("mirror", OrEmpty(_PATH))),
        lists=(("workers", names.WORKER), ("borders", _STAGE)),
    ),
]
