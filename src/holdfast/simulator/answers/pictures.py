"""Pictures of outcomes, by matplotlib: throughput over time, averages, time that is lost."""

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.simulator.answers.values import averaged
from holdfast.simulator.intervals.outcome import PolicyOutcome, Segment, TimeKind
from holdfast.simulator.worlds.world import World

FORMATS = ("svg", "png")
_OURS, _OTHERS = "#1f4e9c", ("#c25b1f", "#4b8a3a", "#8757a8", "#b23a48", "#6b6b6b", "#2a9d8f")
_LOST = {
    TimeKind.SAVING: "#9bb7e0",
    TimeKind.REDONE: "#f2c14e",
    TimeKind.ROLLED_BACK: "#e07b39",
    TimeKind.STALLED: "#b23a48",
    TimeKind.IDLE: "#c9c9c9",
}
_PARTS = 200
_MOST_LINES = 5  # in the picture over time: more cannot be told apart
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_FAULT_FREE, _FAULT_SCALED = "--", "-."
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "svg.hashsalt": "holdfast",
    "svg.fonttype": "none",  # letters stay letters: a tenth of the size
    "font.family": "DejaVu Sans",
}


def drawn(world: World, outcomes: Sequence[PolicyOutcome], form: str) -> bytes:
    """All of it as one picture, the same bytes for the same outcomes."""
    if form not in FORMATS:
        raise ConfigError(f"picture .{form}: expected a file that ends in .svg or .png")
    matplotlib = _library()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(10, 10), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.25, 1))
        top, middle = upper.subplots(2, 1, height_ratios=(0.35, 1), sharex=True)
        left, right = lower.subplots(1, 2)
        _machines(top, world, outcomes[0])
        _over_time(middle, outcomes)
        shown = sorted(outcomes, key=lambda outcome: outcome.rate)
        _averages(left, shown)
        _spent(right, shown)
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=130, metadata=metadata)
    data = buffer.getvalue()
    return _short(_numbered(data)) if form == "svg" else data


def _short(svg: bytes) -> bytes:
    """Coordinates to a hundredth of a point, and a path on one line."""
    rounded = re.sub(rb"-?\d+\.\d{3,}", lambda at: b"%g" % round(float(at[0]), 2), svg)
    return re.sub(rb"\s+(?=[LMQCz] ?[-\d\"]| ?\"/>)", b" ", rounded)


def _numbered(svg: bytes) -> bytes:
    """Some ids are made from addresses in memory: they are numbered as they come instead."""
    found = re.findall(rb'id="([a-z]+[0-9a-f]{10})"', svg)
    numbers = {name: b"h%d" % number for number, name in enumerate(dict.fromkeys(found))}
    return re.sub(rb"\b[a-z]+[0-9a-f]{10}\b", lambda at: numbers.get(at[0], at[0]), svg)


def _library() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as why:
        raise ConfigError(
            "pictures need matplotlib, which is not installed: pip install 'holdfast[simulate]'"
        ) from why
    return matplotlib


def _hours(axes: Any, length_s: float) -> None:
    axes.set_xlim(0, length_s / 3600)
    axes.set_xlabel("hours")


def _machines(axes: Any, world: World, outcome: PolicyOutcome) -> None:
    changes = list(_changes(outcome.segments))
    times = [at_s / 3600 for at_s, _ in changes] + [world.length_s / 3600]
    live = [number for _, number in changes]
    axes.step(times, [*live, live[-1]], where="post", color="#444444", linewidth=1)
    axes.set_title(f"Workers that are there ({world.name})")
    low, high = min(live), max(live)
    low = low if low > 0.5 * high else 0  # of few failures something should be seen
    room = max(0.1 * (high - low), 0.5)
    axes.set_ylim(max(low - room, 0), high + room)
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)


def _changes(segments: Sequence[Segment]) -> Iterator[tuple[float, int]]:
    """When there are others than before, and how many."""
    before = None
    for segment in segments:
        if segment.live != before:
            yield segment.start_s, segment.live
        before = segment.live


def _over_time(axes: Any, outcomes: Sequence[PolicyOutcome]) -> None:
    best = sorted(outcomes, key=lambda outcome: -outcome.rate)
    ours = [outcome for outcome in outcomes if outcome.policy == "holdfast"]
    others = {outcome.samples: outcome for outcome in reversed(best) if outcome not in ours}
    different = sorted(others.values(), key=lambda outcome: -outcome.rate)
    lines = [*ours, *(outcome for outcome in different if outcome.samples)]
    colours = [_OURS] * len(ours) + list(_OTHERS)
    length_s = outcomes[0].length_s
    width_h = length_s / 3600 / _PARTS
    times = [(at + 0.5) * width_h for at in range(_PARTS)]
    for outcome, colour in zip(lines[:_MOST_LINES], colours, strict=False):
        rates = averaged(outcome.segments, length_s, _PARTS)
        is_ours = outcome.policy == "holdfast"
        axes.plot(
            times, rates, color=colour, linewidth=1.8 if is_ours else 1.0,
            label=f"{outcome.title}: {outcome.rate:,.4g}", zorder=3 if is_ours else 2,
        )  # fmt: skip
        axes.axhline(outcome.rate, color=colour, linewidth=0.8, linestyle=(0, (1, 2)))
    plain, scaled = outcomes[0].plain_rate, outcomes[0].fault_scaled_rate
    for rate, words, style in (
        (plain, "1F1B, nobody missing", _FAULT_FREE),
        (scaled, "the same, fault-scaled", _FAULT_SCALED),
    ):
        axes.axhline(rate, color="black", linewidth=0.9, linestyle=style, label=words)
    axes.set_title("Samples a second (dotted, and numbers: averages)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
    _hours(axes, length_s)


def _averages(axes: Any, shown: Sequence[PolicyOutcome]) -> None:
    colours = [_OURS if outcome.policy == "holdfast" else "#9a9a9a" for outcome in shown]
    names = [outcome.title for outcome in shown]
    axes.barh(names, [outcome.rate for outcome in shown], color=colours, zorder=2)
    most = max((outcome.rate for outcome in shown), default=0.0) or 1.0
    for at, outcome in enumerate(shown):
        words = f"{outcome.rate:,.4g}" if outcome.samples else "does not run"
        axes.text(outcome.rate + 0.01 * most, at, words, va="center", fontsize=8.5, bbox=_BEHIND)
    scaled = shown[0].fault_scaled_rate
    axes.axvline(scaled, color="black", linewidth=0.9, linestyle=_FAULT_SCALED, zorder=1)
    axes.set_xlim(0, most * 1.2)
    axes.set_title("Average samples a second")
    axes.set_xlabel("line: 1F1B, fault-scaled")


def _spent(axes: Any, shown: Sequence[PolicyOutcome]) -> None:
    """All but the steps that count; of those that never run only that."""
    left, names = [0.0] * len(shown), [outcome.title for outcome in shown]
    for kind, colour in _LOST.items():
        widths = [100 * outcome.share(kind) if outcome.samples else 0.0 for outcome in shown]
        axes.barh(names, widths, left=left, color=colour, label=kind.value, zorder=2)
        left = [one + other for one, other in zip(left, widths, strict=True)]
    most = max(max(left, default=0.0), 0.1)
    for at, (outcome, lost) in enumerate(zip(shown, left, strict=True)):
        words = f"{lost:.1f}" if outcome.samples else "does not run"
        axes.text(lost + 0.01 * most, at, words, va="center", fontsize=8.5)
    axes.set_xlim(0, min(most * 1.2, 112))
    axes.set_yticklabels([])
    axes.set_xlabel("% of the time")
    axes.set_title("Time that is lost")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
