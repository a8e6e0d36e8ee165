"""Heartbeats and reports as the rows that agents pass on, and back. Pure.

Rows of many workers are checked column by column, which takes a fraction of what as many messages
would. All rows of one kind stand in one list; each heartbeat and report says how many are its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import NamedTuple

from holdfast.errors import ProtocolError
from holdfast.protocol.messages import Gathered, Heartbeat, StepReport
from holdfast.protocol.records import BeatRow, LongestRow, ReportRow


class Word(NamedTuple):
    """What one worker has said. ``said``: messages of its own before it; ``epoch``: as it was."""

    message: Heartbeat | StepReport
    said: int
    epoch: int


class Beat(NamedTuple):
    """A heartbeat as it was passed on, and the rows that are its own."""

    row: BeatRow
    longest: Sequence[LongestRow]


def gathered_beat(beat: Heartbeat) -> Gathered:
    row = BeatRow(
        worker=beat.worker,
        epoch=beat.epoch,
        step=beat.step,
        attempt=beat.attempt,
        done=beat.done,
        operation=beat.operation,
        number=beat.number,
        microbatch=beat.microbatch,
        busy_s=beat.busy_s,
        saving=beat.saving,
        renewed=beat.renewed,
        num_longest=len(beat.longest),
    )
    longest = [LongestRow(*one) for one in beat.longest.items()]
    return Gathered(
        alive=[], beats=[row], longest=longest, reports=[], losses=[], operations=[], transfers=[]
    )


def gathered_report(report: StepReport, epoch: int, said: int) -> Gathered:
    row = ReportRow(
        worker=report.worker,
        said=said,
        epoch=epoch,
        step=report.step,
        num_tokens=report.num_tokens,
        norm=report.norm,
        clipped=report.clipped,
        skipped=report.skipped,
        taken_back=report.taken_back,
        nonfinite=report.nonfinite,
        loss_scale=report.loss_scale,
        lr=report.lr,
        num_losses=len(report.losses),
        num_operations=len(report.operations),
        num_transfers=len(report.transfers),
    )
    return Gathered(
        alive=[],
        beats=[],
        longest=[],
        reports=[row],
        losses=report.losses,
        operations=report.operations,
        transfers=report.transfers,
    )


def together(parts: Iterable[Gathered]) -> Gathered:
    """In the same order."""
    lists: dict[str, list[object]] = {one.name: [] for one in fields(Gathered)}
    for part in parts:
        for name, rows in lists.items():
            rows += getattr(part, name)
    return Gathered(**lists)  # type: ignore[arg-type]


def speakers(gathered: Gathered) -> set[str]:
    lists = (gathered.alive, gathered.beats, gathered.reports)
    return {row.worker for rows in lists for row in rows}


def check_numbers(gathered: Gathered) -> None:
    """ProtocolError: there are fewer rows than it says, or more."""
    told = [
        (len(gathered.longest), sum(row.num_longest for row in gathered.beats)),
        (len(gathered.losses), sum(row.num_losses for row in gathered.reports)),
        (len(gathered.operations), sum(row.num_operations for row in gathered.reports)),
        (len(gathered.transfers), sum(row.num_transfers for row in gathered.reports)),
    ]
    for number, expected in told:
        if number != expected:
            raise ProtocolError(f"Gathered: {number} rows; expected {expected}")


def beats_of(gathered: Gathered) -> Iterator[Beat]:
    """Of one whose numbers were checked; likewise below."""
    longest, first = gathered.longest, 0
    for row in gathered.beats:
        end = first + row.num_longest
        yield Beat(row, longest[first:end])
        first = end


def reports_of(gathered: Gathered) -> Iterator[Word]:
    losses, operations = iter(gathered.losses), iter(gathered.operations)
    transfers = iter(gathered.transfers)
    for row in gathered.reports:
        report = StepReport(
            worker=row.worker,
            step=row.step,
            losses=list(islice(losses, row.num_losses)),
            num_tokens=row.num_tokens,
            norm=row.norm,
            clipped=row.clipped,
            skipped=row.skipped,
            taken_back=row.taken_back,
            nonfinite=row.nonfinite,
            loss_scale=row.loss_scale,
            lr=row.lr,
            operations=list(islice(operations, row.num_operations)),
            transfers=list(islice(transfers, row.num_transfers)),
        )
        yield Word(report, row.said, row.epoch)


def heartbeat_of(beat: Beat) -> Heartbeat:
    row = beat.row
    return Heartbeat(
        worker=row.worker,
        epoch=row.epoch,
        step=row.step,
        attempt=row.attempt,
        done=row.done,
        operation=row.operation,
        number=row.number,
        microbatch=row.microbatch,
        busy_s=row.busy_s,
        longest=dict(beat.longest),
        saving=row.saving,
        renewed=row.renewed,
    )
