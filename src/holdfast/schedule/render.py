"""A timeline as a text grid for the terminal and as a stand-alone SVG. Draws; decides nothing."""

from collections.abc import Iterator
from itertools import islice
from xml.sax.saxutils import escape

from holdfast.cluster import WorkerId
from holdfast.schedule.operation import Kind
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import Span, Timeline

_MEANING = {
    Kind.F: "forward",
    Kind.B: "input gradient",
    Kind.W: "weight gradient",
    Kind.BW: "both gradients",
    Kind.R: "reduce and optimizer step",
}
# One letter each for cells too narrow for a name.
_LETTER = {Kind.F: "F", Kind.B: "B", Kind.W: "W", Kind.BW: "X", Kind.R: "R"}
_COLOUR = {
    Kind.F: "#7fb2e5",
    Kind.B: "#f2b56b",
    Kind.W: "#8fcf9f",
    Kind.BW: "#d9a0c8",
    Kind.R: "#b0b0b0",
}

_ROW_HEIGHT, _LEFT, _TOP = 22, 56, 34
_FONT_SIZES = (11, 9)  # of names in boxes: the first that fits
_CHARACTER_WIDTH = 0.66  # of its size, on average


def grid(
    schedule: Schedule, timeline: Timeline, *, width: int = 120, most_lanes: int | None = None
) -> str:
    """One row a worker, time to the right, at most ``width`` characters a row.

    Operations are named (``F3``, micro-batch 3) if there is room for all the names; otherwise
    each is a letter, drawn out as long as it lasts, a small one at a stage not the worker's own.
    """
    rows = _rows(schedule, timeline, most_lanes)
    margin = max(len(str(worker)) for worker in rows) + 1
    scale = _columns_per_s(timeline, max(width - margin, 1))
    named = all(len(_label(s)) < (s.end_s - s.start_s) * scale for s in _lasting(timeline))
    lines = [f"{worker!s:<{margin}}{_cells(spans, scale, named)}" for worker, spans in rows.items()]
    guests = any(_is_guest(span) for spans in rows.values() for span in spans)
    return "\n".join([*lines, _key(named, guests)]) + "\n"


def _key(named: bool, guests: bool) -> str:
    words = [
        f"{kind.value if named else _LETTER[kind]} {meaning}" for kind, meaning in _MEANING.items()
    ]
    small = ["small letters another stage"] if guests and not named else []
    return ", ".join([*words, *small, ". idle"])


def _rows(
    schedule: Schedule, timeline: Timeline, most_lanes: int | None
) -> dict[WorkerId, list[Span]]:
    rows: dict[WorkerId, list[Span]] = {w: [] for w in islice(schedule.lanes, most_lanes)}
    for span in timeline.spans:
        if span.worker in rows:
            rows[span.worker].append(span)
    return rows


def _is_guest(span: Span) -> bool:
    return span.op.stage != span.worker.stage


def _lasting(timeline: Timeline) -> list[Span]:
    return [span for span in timeline.spans if span.end_s > span.start_s]


def _columns_per_s(timeline: Timeline, columns: int) -> float:
    """As many columns as the longest name in the shortest operation wants, or as there are."""
    end_s = max(span.end_s for span in timeline.spans)
    spans = _lasting(timeline)
    shortest_s = min(span.end_s - span.start_s for span in spans)
    wanted = max(len(_label(span)) for span in spans) + 1
    there_are = columns * shortest_s / end_s
    # Whole columns for the shortest operation, so that equal operations look equal.
    return min(wanted, int(there_are) or there_are) / shortest_s


def _label(span: Span) -> str:
    """Without the stage, unless the worker also holds another."""
    name = str(span.op)
    own = str(span.worker.stage)
    return name if _is_guest(span) else name[len(own) :]


def _cells(spans: list[Span], columns_per_s: float, named: bool) -> str:
    text = ""
    for span in spans:
        start, end = round(span.start_s * columns_per_s), round(span.end_s * columns_per_s)
        text = text.ljust(start, ".") + _cell(span, end - start, named)
    return text.rstrip()


def _cell(span: Span, width: int, named: bool) -> str:
    if named and width:
        return _label(span).ljust(width - 1, "-") + " "
    letter = _LETTER[span.op.kind]
    return (letter.lower() if _is_guest(span) else letter).ljust(width, "-")[:width]


def svg(
    schedule: Schedule, timeline: Timeline, *, width: int = 1200, most_lanes: int | None = None
) -> str:
    """The same picture with colours, a legend and a tooltip on every operation."""
    rows = _rows(schedule, timeline, most_lanes)
    end_s = max(span.end_s for span in timeline.spans)
    pixels_per_s = (width - _LEFT - 10) / end_s
    height = _TOP + _ROW_HEIGHT * len(rows) + 10
    body = [*_legend()]
    for number, (worker, spans) in enumerate(rows.items()):
        y = _TOP + number * _ROW_HEIGHT
        body.append(f'<text x="6" y="{y + 14}" font-weight="bold">{worker}</text>')
        body += (_box(span, y, pixels_per_s) for span in spans if span.end_s > span.start_s)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
            f"<title>period {timeline.period_s:g} s</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    x = _LEFT
    for kind, meaning in _MEANING.items():
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{_COLOUR[kind]}"/>'
        yield f'<text x="{x + 16}" y="18">{kind.value} {meaning}</text>'
        x += 42 + 7 * len(meaning)
    yield f'<text x="{x}" y="18" fill="#606060">every other step is paler</text>'


def _box(span: Span, y: int, pixels_per_s: float) -> str:
    x = _LEFT + span.start_s * pixels_per_s
    width = (span.end_s - span.start_s) * pixels_per_s
    label = _label(span)
    tooltip = escape(
        f"step {span.step}, worker {span.worker}, {span.op}: {span.start_s:g} to {span.end_s:g} s"
    )
    pale = ' fill-opacity="0.5"' if span.step % 2 else ""
    return (
        f'<g><title>{tooltip}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" '
        f'height="{_ROW_HEIGHT - 4}" fill="{_COLOUR[span.op.kind]}"{pale} stroke="white"/>'
        f"{_name(label, x + width / 2, y, width)}</g>"
    )


def _name(label: str, middle: float, y: int, width: float) -> str:
    for size in _FONT_SIZES:
        if width > _CHARACTER_WIDTH * size * len(label) + 1:
            return (
                f'<text x="{middle:.2f}" y="{y + 14}" font-size="{size}" '
                f'text-anchor="middle">{label}</text>'
            )
    return ""
