"""How long a fault lasts and how much it costs: ``3-6 x2.0``, ``3 +15ms``, ``3-6 10MB/s``.

Data with a text form. Knows neither whom it happens to nor how it is carried out.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NUMBER = r"([0-9]{1,9}\.?[0-9]{0,20}|\.[0-9]{1,20})"
_FACTOR = re.compile(rf"x{_NUMBER}")
_DELAY = re.compile(rf"\+{_NUMBER}(ms|s)")
_BANDWIDTH = re.compile(rf"{_NUMBER}(kB|MB|GB)/s")
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1)}
_BYTES = {"kB": Decimal(10**3), "MB": Decimal(10**6), "GB": Decimal(10**9)}


class Amount(Enum):
    """What a fault is measured by; the value says how it is written."""

    FACTOR = "a factor (x2.0)"
    TRANSFER = "a delay (+15ms) or a bandwidth (10MB/s)"


@dataclass(frozen=True, slots=True)
class Lasting:
    """From its first step, which is the fault's, to ``last_step``, both included."""

    last_step: int | None = None  # counted from 0; None: until the end of the run
    factor: float = 1.0  # work takes this many times as long
    delay_s: float = 0.0  # a transfer takes this much longer
    bytes_s: float = math.inf  # most that a link carries

    def __str__(self) -> str:
        """Without its first step, of which it does not know."""
        last = "" if self.last_step is None else f"-{self.last_step + 1}"
        return f"{last} {self._amount()}"

    def _amount(self) -> str:
        if self.delay_s:
            return f"+{_plain(Decimal(repr(self.delay_s)) / _SECONDS['ms'])}ms"
        if self.bytes_s != math.inf:
            return _bandwidth(Decimal(repr(self.bytes_s)))
        return f"x{Decimal(repr(self.factor)):f}"

    def ends_before(self, step: int) -> bool:
        return self.last_step is not None and self.last_step < step


def parse_lasting(text: str, amount: Amount) -> tuple[int, Lasting]:
    """The first step, counted from 0, and the rest. ValueError says what is wrong."""
    steps_text, amount_text = (*text.split(None, 1), "", "")[:2]
    steps = _RANGE.fullmatch(steps_text)
    if steps is None:
        raise ValueError(
            f"{steps_text!r} is no range of steps, expected e.g. 5-8, or 5 (until the end)"
        )
    last_step = None if steps[2] is None else int(steps[2]) - 1
    if not amount_text:
        raise ValueError(f"it does not say how slow: {amount.value} is missing")
    parse = _parse_factor if amount is Amount.FACTOR else _parse_transfer
    lasting = parse(amount_text.strip(), last_step)
    if lasting is None:
        raise ValueError(f"{amount_text!r} is not {amount.value}")
    return int(steps[1]) - 1, lasting


def _parse_factor(text: str, last_step: int | None) -> Lasting | None:
    found = _FACTOR.fullmatch(text)
    return None if found is None else Lasting(last_step, factor=float(found[1]))


def _parse_transfer(text: str, last_step: int | None) -> Lasting | None:
    # As decimal numbers: 0.1 ms is to be written as it was read.
    if found := _DELAY.fullmatch(text):
        delay_s = float(Decimal(found[1]) * _SECONDS[found[2]])
        if not delay_s:
            raise ValueError("a delay of 0 delays nothing")
        return Lasting(last_step, delay_s=delay_s)
    if found := _BANDWIDTH.fullmatch(text):
        return Lasting(last_step, bytes_s=float(Decimal(found[1]) * _BYTES[found[2]]))
    return None


def _bandwidth(bytes_s: Decimal) -> str:
    unit = max((u for u in _BYTES if _BYTES[u] <= bytes_s), key=_BYTES.__getitem__, default="kB")
    return f"{_plain(bytes_s / _BYTES[unit])}{unit}/s"


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"
