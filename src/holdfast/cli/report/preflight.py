"""What ``holdfast preflight`` prints: one row a machine, then what is wrong and what to do."""

from collections.abc import Iterator, Sequence

from holdfast.launch.preflight.facts import LinkFacts, MachineFacts
from holdfast.launch.preflight.findings import Surveyed, rate, way
from holdfast.observability.text import count, folded

_HEADS = ("machine", "address", "holdfast", "python", "torch", "clock", "slowest to", "farthest to")


def report(found: Surveyed, width: int) -> Iterator[str]:
    if found.machines:
        yield from _table([_HEADS, *(_row(found, each) for each in found.machines)])
    findings = found.findings()
    fatal = [each for each in findings if each.is_fatal]
    for finding in findings:
        word = "WRONG" if finding.is_fatal else "check"
        yield from folded(f"{word}  {finding}", width=width)
    if not findings:
        num = len(found.links)
        yield f"all is well: {count(len(found.machines), 'machine')}, {count(num, 'way')} between"
    elif not fatal:
        yield "a run can work so"


def _row(found: Surveyed, facts: MachineFacts) -> tuple[str, ...]:
    clock = found.clocks.get(facts.machine)
    ways = {to: link for (caller, to), link in found.links.items() if caller == facts.machine}
    good = {to: link for to, link in ways.items() if not link.reason}
    return (
        facts.machine,
        facts.host,
        facts.holdfast,
        facts.python,
        facts.torch,
        "?" if clock is None else f"{clock.offset_s:+.3f} s",
        *_worst(good, num_bad=len(ways) - len(good)),
    )


def _worst(links: dict[str, LinkFacts], num_bad: int) -> tuple[str, str]:
    """With the machine at its end. Those that are not reached at all are told first."""
    if num_bad:
        return f"{count(num_bad, 'machine')} not reached", ""
    if not links:
        return "", ""
    slow = min(links, key=lambda to: links[to].bytes_per_s)
    far = max(links, key=lambda to: links[to].round_trip_s)
    return (
        f"{slow}: {rate(links[slow].bytes_per_s)}",
        f"{far}: {way(links[far].round_trip_s)}",
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    for row in rows:
        yield "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
    yield ""
