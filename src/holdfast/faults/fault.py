"""A fault to inject: what happens to whom, and where. Data with a text form, as users write it.

Knows neither how a fault is carried out nor which points a run really reaches: a fault at an
operation that its worker does not run in that step happens when its reduction begins.
Some faults are points in time, others last for a range of steps.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import Argument, ConfigError
from holdfast.faults.lasting import Amount, Lasting, parse_lasting

BEGIN, HALT, PROCEED, COPY = "begin", "halt", "proceed", "copy"
_REPLAY = "replay"
_REDUCE = "reduce"
PHASES: Mapping[str, str] = MappingProxyType(
    {
        BEGIN: "before the first operation of the step",
        _REDUCE: "before its share of the reduction is sent",
        "partials": "its share is sent, the others' are awaited",
        "reduced": "the sum is here, nobody was told",
        "told": "the other stages were told the norm",
        "apply": "before the optimizer step",
        "half": "in the middle of the optimizer step",
        "applied": "after the optimizer step",
        "check": "before it hears the verdict of the other stages",
        "settled": "the step is final",
        "save": "its part of a checkpoint is being written",
        "validate": "in the validation after the step, it has run one micro-batch and told nobody",
        HALT: "it was told to stop for somebody else's failure",
        PROCEED: "it has the new plan and has not yet run anything",
        COPY: "it joins and is copying state",
        _REPLAY: "it is about to replay a step of a lost stage",
    }
)
"""Points of a step that are no operation, and what each means; the first ten in this order."""

_ANY_STEP = (HALT, PROCEED, COPY, _REPLAY)  # in any step: the first one from STEP on counts
_OPERATION = re.compile(r"([FBW])([0-9]{1,9})(\.done)?")
_STEP = re.compile(r"-?[0-9]{1,9}")


class FaultKind(StrEnum):
    """The values are what the user writes."""

    KILL = "kill"  # the worker is gone at once
    HANG = "hang"  # it stands still until somebody wakes it
    SLOW = "slow"  # its work takes longer: from here on, or in a range of steps
    LINK = "link"  # what two workers send each other takes longer, in a range of steps
    CPU = "cpu"  # its process gets a part of its time on the CPU only, in a range of steps
    JOIN = "join"  # a missing worker comes back


_AMOUNTS: Mapping[FaultKind, Amount] = {
    FaultKind.SLOW: Amount.FACTOR,
    FaultKind.LINK: Amount.TRANSFER,
    FaultKind.CPU: Amount.FACTOR,
}
_MAX_FACTORS: Mapping[FaultKind, float] = {FaultKind.SLOW: 100.0, FaultKind.CPU: 10.0}
MAX_DELAY_S = 10.0
MIN_BYTES_S = 1000.0
_EXAMPLES: Mapping[str, str] = {
    FaultKind.KILL: "kill 1.0 @ 5",
    FaultKind.HANG: "hang 1.0 @ 5.B3",
    FaultKind.SLOW: "slow 1.0 @ 5-8 x2.0",
    FaultKind.LINK: "link 0.0-0.1 @ 5-8 +15ms",
    FaultKind.CPU: "cpu 1.0 @ 5-8 x2.0",
    FaultKind.JOIN: "join 1.0 @ 8",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Prints and parses as ``kill 1.0 @ 5.F0``; the text counts steps from 1."""

    kind: FaultKind
    worker: WorkerId | None  # None: whoever is missing (join only)
    step: int  # counted from 0
    point: str = BEGIN  # a phase, or an operation as in ``F0`` and ``B3.done``
    speed: float = 1.0  # of a slow worker; 1: as fast as before
    peer: WorkerId | None = None  # the other end of a link; ``worker`` is the smaller one
    lasting: Lasting | None = None  # None: it is a point in time

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """As in ``kill 1.0 @ 5``.

        >>> Fault.parse("kill 1.0 @ 5.B3").step  # counted from 0
        4
        """
        return parse_fault(text)

    def __post_init__(self) -> None:
        if self.worker is None and self.kind is not FaultKind.JOIN:
            raise ValueError(f"{self.kind.value} needs a worker")

    def __str__(self) -> str:
        if self.lasting is not None:
            link = "" if self.peer is None else f"-{self.peer}"
            return f"{self.kind.value} {self.worker}{link} @ {self.step + 1}{self.lasting}"
        words = [self.kind.value] if self.worker is None else [self.kind.value, str(self.worker)]
        speed = f"={self.speed!r}" if self.kind is FaultKind.SLOW else ""
        point = "" if self.point == BEGIN else f".{self.point}"
        return f"{' '.join(words)}{speed} @ {self.step + 1}{point}"

    def waits_at(self, step: int, point: str) -> bool:
        """Whether it happens to a worker that reaches ``point`` of ``step``, if it has not yet."""
        if _OPERATION.fullmatch(self.point) and point == _REDUCE:
            return self.step == step  # it had fewer operations than that
        if self.point != point:
            return False
        return self.step <= step if point in _ANY_STEP else self.step == step

    def covers(self, step: int) -> bool:
        """Whether it lasts, and acts all through ``step``."""
        lasting = self.lasting
        return lasting is not None and self.step <= step and not lasting.ends_before(step)

    def concerns(self, worker: WorkerId) -> bool:
        """Whether ``worker`` has to carry it out; both ends do of a link."""
        return worker in (self.worker, self.peer)


def parse_fault(text: str) -> Fault:
    """Read ``kill W @ WHERE``, ``hang W @ WHERE``, ``slow W=SPEED @ WHERE``, ``join [W] @ STEP``,
    ``slow W @ STEPS xF``, ``cpu W @ STEPS xF``, ``link V-W @ STEPS +15ms`` (or ``10MB/s``).

    WHERE is STEP or STEP.POINT, STEPS is FIRST-LAST or FIRST.
    """
    try:
        return _parse(text)
    except ValueError as why:
        first_word = text.replace("@", " ").split()[:1]
        example = _EXAMPLES.get("".join(first_word), _EXAMPLES[FaultKind.KILL])
        raise ConfigError(_given(repr(text)), f": {why}; write e.g. {example!r}") from why


def _parse(text: str) -> Fault:
    head, at, where = text.partition("@")
    kind_text, whom = (*head.split(None, 1), "", "")[:2]
    if kind_text not in list(FaultKind):
        raise ValueError(f"{kind_text!r} is no fault, expected {', '.join(FaultKind)}")
    kind = FaultKind(kind_text)
    if not at:
        raise ValueError("it does not say when: '@' and a step are missing")
    if kind in _AMOUNTS and not (kind is FaultKind.SLOW and "=" in whom):
        return _parse_lasting(kind, whom.strip(), where)
    worker, speed = _parse_whom(kind, whom.strip())
    step_text, dot, point = where.strip().partition(".")
    if kind is FaultKind.JOIN and dot:
        raise ValueError(f"join takes a step only, not a point ({point!r})")
    step = _parse_step(step_text)
    return Fault(kind, worker, step, _parse_point(point) if dot else BEGIN, speed)


def _parse_lasting(kind: FaultKind, whom: str, when: str) -> Fault:
    worker, peer = _parse_ends(whom) if kind is FaultKind.LINK else (_parse_one(kind, whom), None)
    step, lasting = parse_lasting(when.strip(), _AMOUNTS[kind])
    return Fault(kind, worker, step, peer=peer, lasting=lasting)


def _parse_ends(text: str) -> tuple[WorkerId, WorkerId]:
    one, dash, other = (part.strip() for part in text.partition("-"))
    if not (one and dash and other):
        raise ValueError("link needs two workers with '-' between them")
    first, second = sorted((_parse_worker(one), _parse_worker(other)))
    return first, second


def _parse_whom(kind: FaultKind, text: str) -> tuple[WorkerId | None, float]:
    name, equals, speed = (part.strip() for part in text.partition("="))
    if equals and kind is not FaultKind.SLOW:
        raise ValueError(f"only slow takes a speed, not {kind.value}")
    if kind is FaultKind.JOIN and not name:
        return None, 1.0
    worker = _parse_one(kind, name)
    if kind is not FaultKind.SLOW:
        return worker, 1.0
    if not speed:
        raise ValueError("slow needs a speed")
    return worker, _parse_speed(speed)


def _parse_one(kind: FaultKind, text: str) -> WorkerId:
    if not text:
        raise ValueError(f"{kind.value} needs a worker")
    name, equals, _ = text.partition("=")
    if equals:
        raise ValueError(f"only slow takes a speed, not {kind.value}")
    return _parse_worker(name)


def _parse_worker(text: str) -> WorkerId:
    try:
        return parse_worker(text)
    except ValueError:
        raise ValueError(f"{text!r} is no worker, expected pipeline.stage") from None


def _parse_speed(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"speed {text!r} is no number") from None


def _parse_step(text: str) -> int:
    if _STEP.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no step, expected a number counted from 1")
    return int(text) - 1


def _parse_point(text: str) -> str:
    if text in PHASES:
        return text
    found = _OPERATION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no point, expected an operation (F0, B3, B3.done, W1; a fused BW is "
            f"both a B and a W) or one of {', '.join(PHASES)}"
        )
    kind, number, done = found.groups()
    return f"{kind}{int(number)}{done or ''}"


def check_faults(
    faults: Sequence[Fault], pipelines: int, stages: int, steps: int, *, first_step: int = 0
) -> None:
    """Refuse what cannot happen in a run of steps ``first_step`` to ``steps`` - 1."""
    seen: dict[tuple[object, ...], Fault] = {}
    for fault in faults:
        for worker in (fault.worker, fault.peer):
            _check_worker(fault, worker, pipelines, stages)
        lasting = fault.lasting or Lasting()
        for step in (fault.step, fault.step if lasting.last_step is None else lasting.last_step):
            if not first_step <= step < steps:
                expected = f"{first_step + 1} to {steps}, the steps of this run"
                raise _refusal(fault, f"there is no step {step + 1}; expected {expected}")
        _check_amount(fault, lasting)
        # Slowness adds up: only the very same fault would be one too many.
        place = str(fault) if fault.lasting else fault.point
        first = seen.setdefault((fault.kind, fault.worker, fault.step, place), fault)
        if first is not fault:
            raise _refusal(fault, f"{_why_twice(first, fault)}; leave out one")
    _check_overlaps(faults)


def _refusal(fault: Fault, why: str) -> ConfigError:
    return ConfigError(_given(f"'{fault}'"), f": {why}")


def _given(text: str) -> Argument:
    return Argument("faults", text)


def _check_worker(fault: Fault, worker: WorkerId | None, pipelines: int, stages: int) -> None:
    if worker is None or (worker.pipeline < pipelines and worker.stage < stages):
        return
    last = WorkerId(pipelines - 1, stages - 1)
    raise _refusal(
        fault,
        f"there is no worker {worker}; expected pipeline.stage from 0.0 to {last} "
        f"({pipelines} pipelines x {stages} stages)",
    )


def _check_amount(fault: Fault, lasting: Lasting) -> None:
    if lasting.ends_before(fault.step):
        raise _refusal(fault, "it ends before it begins; expected FIRST-LAST, e.g. 5-8")
    if fault.peer is not None and fault.peer == fault.worker:
        raise _refusal(fault, "a link has two ends; expected two workers, e.g. 0.0-0.1")
    if not 0 < fault.speed <= 1:
        expected = "expected above 0 and at most 1 (0.5: half as fast)"
        raise _refusal(fault, f"speed {fault.speed!r}; {expected}")
    if fault.lasting is None:
        return
    most = _MAX_FACTORS.get(fault.kind)
    if most is not None and not 1 < lasting.factor <= most:
        expected = f"expected above 1 and at most {most:g} (2.0: it takes twice as long)"
        raise _refusal(fault, f"factor {lasting.factor!r}; {expected}")
    if lasting.delay_s > MAX_DELAY_S:
        raise _refusal(fault, f"expected a delay of at most {MAX_DELAY_S:g} s")
    if lasting.bytes_s < MIN_BYTES_S:
        raise _refusal(fault, "expected a bandwidth of at least 1kB/s")


def _check_overlaps(faults: Sequence[Fault]) -> None:
    """Of the same link, or the same share of a CPU, there is only one setting at a time."""
    single = [f for f in faults if f.lasting and f.kind in (FaultKind.LINK, FaultKind.CPU)]
    before: dict[tuple[object, ...], Fault] = {}
    for fault in sorted(single, key=lambda fault: fault.step):
        whose = (fault.kind, fault.worker, fault.peer)
        if whose in before and before[whose].covers(fault.step):
            raise _refusal(fault, f"'{before[whose]}' is not over by then; give one at a time")
        before[whose] = fault


def _why_twice(first: Fault, second: Fault) -> str:
    return "it is given twice" if first == second else f"'{first}' is given for the same place"
