"""Names that become part of a path, or are compared with one: each has a closed form.

What comes over a wire, out of a manifest or from a listing is held against its form before it is
used. No form admits a separator, a leading dot or an empty name, so none can lead elsewhere.
"""

import re
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ProtocolError

_NUMBER = "(?:0|[1-9][0-9]{0,3})"  # of a pipeline or a stage
_COUNT = "(?:0|[1-9][0-9]{0,9})"  # of an epoch or a history
_STEP = "[0-9]{8,10}"
MOST_STAGE = 9999
MOST_SLOTS = 4096  # of a machine
MOST_STEP = 9_999_999_999
CACHE_VARIABLE = "HOLDFAST_CACHE"  # in the environment: a directory for files of this machine


@dataclass(frozen=True, slots=True)
class Form:
    what: str  # for the one line that says what was expected
    pattern: re.Pattern[str]

    def fits(self, text: object) -> bool:
        return isinstance(text, str) and self.pattern.fullmatch(text) is not None

    def check(self, text: object, where: str) -> str:
        """The text itself; ProtocolError if it is anything else."""
        if not isinstance(text, str) or self.pattern.fullmatch(text) is None:
            raise ProtocolError(f"{where}={_short(text)}: expected {self.what}")
        return text


def _form(what: str, pattern: str) -> Form:
    return Form(what, re.compile(pattern))


WORKER = _form("pipeline.stage, e.g. '1.0'", rf"{_NUMBER}\.{_NUMBER}")
MACHINE = _form(
    "a machine's name: 1 to 63 letters, digits, '-', '_' and single dots, e.g. 'node-1'",
    r"(?=.{1,63}\Z)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9][A-Za-z0-9_-]*)*",
)
SHA256 = _form("64 hexadecimal digits", "[0-9a-f]{64}")
HASH = _form("32 hexadecimal digits", "[0-9a-f]{32}")
LAYER = _form("the number of a layer", "(?:0|[1-9][0-9]{0,6})")
OPERATION = _form(
    "an operation, e.g. '2F5', '2BW5' or '2R'",
    f"{_NUMBER}(?:(?:F|BW|B|W)(?:0|[1-9][0-9]{{0,8}})|R)",
)
RUN_ID = _form("a run and its history", rf"[0-9a-f]{{0,32}}\.{_COUNT}")
CHECKPOINT = _form("e.g. 'step-00000020'", f"step-{_STEP}")
PART = _form("e.g. 'stage-1' or 'stage-1.0a1b2c3d'", rf"stage-{_NUMBER}(?:\.[0-9a-f]{{8}})?")
PART_FILE = _form(
    "a plain file name", r"(?=.{1,100}\Z)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
)
REBUILT = _form(
    "e.g. 'step-00000020-from-stage-1-3'", f"step-{_STEP}-from-stage-{_NUMBER}-{_COUNT}"
)
RESUMED = _form("'resumed', which the run went on from", "resumed")
SEGMENT = _form("e.g. 'segment-00000001.log'", r"segment-[0-9]{8,12}\.log")


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def check_number(value: Any, where: str, least: int, most: int) -> int:
    """A whole number within its bounds; ProtocolError if it is anything else."""
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"{where}={_short(value)}: expected {least} to {most}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
