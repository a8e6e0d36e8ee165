"""A stage's reduced step on its way to a worker that has none: a holder left behind, or a joiner.

Numbers travel as fp64, which holds every one of them exactly.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.reduction import Reduced
from holdfast.runtime.reduce.step_sums import decode_totals, encode_totals
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.update.commit import StepResult
from holdfast.transport.base import Channel, Tag, Transport

_META, _FLAT, _TOTALS = range(3)  # parts of the message


class StageForm(NamedTuple):
    """What both sides know of a stage."""

    layout: FlatLayout
    shapes: Mapping[str, torch.Size]  # of its buffers


def result_messages(
    channel: Channel, result: StepResult, form: StageForm, verdict: Verdict | None = None
) -> list[tuple[Tag, Tensor]]:
    # A joiner does not know how often a step was tried.
    tag = Tag(channel, result.step, result.attempt if channel is Channel.RESULT else 0)
    reduced = result.reduced
    meta = [*_encode_verdict(verdict), float(result.attempt), float(reduced.nonfinite)]
    meta += [*map(float, reduced.touched), *reduced.squares, *reduced.maxima]
    totals = encode_totals(result.totals, sorted(form.shapes))
    return [
        (tag._replace(part=_META), torch.tensor(meta, dtype=torch.float64)),
        (tag._replace(part=_FLAT), reduced.flat),
        (tag._replace(part=_TOTALS), totals),
    ]


class BegunAnew(Exception):
    """The source starts from the first message again: it will not send what is waited for."""


class Arrivals:
    """Messages of one source that are used up together: a wait that is broken off loses none.

    ``first``: the message that begins them all. When it comes again, ``take`` of any other that
    is not here raises BegunAnew.
    """

    def __init__(self, transport: Transport, source: WorkerId, first: Tag | None = None) -> None:
        self.source = source
        self._transport = transport
        self._first = first
        self._here: dict[Tag, Tensor] = {}

    def take(self, tag: Tag, timeout_s: float) -> Tensor:
        if tag not in self._here:
            self._wait(tag, timeout_s)
            self._here[tag] = self._transport.receive(self.source, tag, timeout_s)
        return self._here[tag]

    def _wait(self, tag: Tag, timeout_s: float) -> None:
        if self._first is not None and tag != self._first:
            either = [(self.source, tag), (self.source, self._first)]
            if self._transport.wait_any(either, timeout_s) == 1:
                raise BegunAnew

    def use_up(self) -> None:
        self._here.clear()


def receive_result(
    arrivals: Arrivals, tag: Tag, form: StageForm, timeout_s: float
) -> tuple[StepResult, Verdict | None]:
    """``tag``: channel, step and attempt of the result."""
    meta, flat, totals = (
        arrivals.take(tag._replace(part=part), timeout_s) for part in (_META, _FLAT, _TOTALS)
    )
    arrivals.use_up()
    num_slots = len(form.layout.slots)
    values = meta.tolist()
    if len(values) != 6 + 3 * num_slots or flat.numel() != form.layout.numel:
        raise ProtocolError(
            f"worker {arrivals.source} sent a gradient of {flat.numel()} elements and "
            f"{len(values)} numbers: expected {form.layout.numel} and {6 + 3 * num_slots}"
        )
    touched, squares, maxima = (
        values[6 + i * num_slots : 6 + (i + 1) * num_slots] for i in range(3)
    )
    reduced = Reduced(
        layout=form.layout,
        flat=flat,
        touched=tuple(map(bool, touched)),
        nonfinite=bool(values[5]),
        squares=tuple(squares),
        maxima=tuple(maxima),
    )
    result = StepResult(tag.step, int(values[4]), reduced, decode_totals(totals, form.shapes))
    return result, _decode_verdict(values[:4])


def send_tied(
    transport: Transport, to: WorkerId, result: StepResult, number: int, slot: int
) -> None:
    """The gradient of one tied parameter alone: the receiver's stage is another one.

    ``number``, from 1 on, stands for the micro-batch; a whole result has 0 there.
    """
    reduced = result.reduced
    values = reduced.layout.padded(reduced.flat, slot)
    tag = Tag(Channel.RESULT, result.step, result.attempt, number)
    transport.send_all(to, tag, (values, torch.tensor(reduced.touched[slot])))


def receive_tied(
    transport: Transport, source: WorkerId, tag: Tag, number: int, timeout_s: float
) -> tuple[Tensor, bool]:
    values, touched = transport.receive_all(source, tag._replace(microbatch=number), timeout_s)
    return values, bool(touched)


def _encode_verdict(verdict: Verdict | None) -> list[float]:
    """[norm, scale or NaN, skip, is there one at all]."""
    if verdict is None:
        return [0.0, math.nan, 0.0, 0.0]
    scale = math.nan if verdict.scale is None else verdict.scale
    return [verdict.norm, scale, float(verdict.skip), 1.0]


def _decode_verdict(values: list[float]) -> Verdict | None:
    norm, scale, skip, is_there = values
    if not is_there:
        return None
    return Verdict(norm, None if math.isnan(scale) else scale, bool(skip))
