"""Worlds as text: our own CSV, and the formats of public traces, told apart by their first lines.

Reads no files: texts come in and go out.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from importlib import resources

from holdfast.errors import Argument, ConfigError
from holdfast.faults.rng import SeededRandom
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind, in_order, require_count

PACKAGED = ("aws-p3", "gcp-a100", "recycle")
_HEAD = "at_s,kind,machines,notice_s,factor"
_FORMATS = (
    f"our own ('{_HEAD}' after a line '# world ...'), 'ms,add|remove,node', "
    "'date, time, count' or 'minute,workers,...'"
)


def packaged_trace(name: str, seed: int = 0) -> World:
    if name not in PACKAGED:
        expected = f": expected one of {', '.join(PACKAGED)}, or a file"
        raise ConfigError(Argument("trace", name), expected)
    folder = resources.files("holdfast.simulator.worlds") / "data"
    return read_world((folder / f"{name}.csv").read_text(encoding="utf-8"), name, seed)


def read_world(text: str, name: str, seed: int = 0) -> World:
    """``seed``: which machines go, where a trace has only their number."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("#")]
    if not said:
        raise ConfigError(f"{name}: empty: expected a trace: {_FORMATS}")
    if said[0] == _HEAD:
        return _own(lines, said[1:], name)
    if re.fullmatch(r"[0-9]+,(add|remove),\S+", said[0]):
        return _adds_and_removes(said, name)
    if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2},", said[0]):
        return _counts([_dated(line, name) for line in said], name, seed)
    if re.match(r"minute,(workers|gpus)\b", said[0]):
        return _counts([_minutes(line, name) for line in said[1:]], name, seed)
    raise ConfigError(f"{name}: unknown trace format {said[0][:40]!r}: expected {_FORMATS}")


def written(world: World) -> str:
    """Reads back as the same world."""
    alive = " ".join(map(str, world.alive))
    head = (
        f"# world machines={world.machines} workers_a_machine={world.workers_a_machine} "
        f"length_s={float(world.length_s)!r} name={world.name}"
    )
    rows = (
        f"{float(event.at_s)!r},{event.kind.value},{' '.join(map(str, event.machines))},"
        f"{float(event.notice_s)!r},{float(event.factor)!r}"
        for event in world.events
    )
    return "\n".join([head, f"# alive {alive}", _HEAD, *rows]) + "\n"


def _own(lines: Sequence[str], rows: Sequence[str], name: str) -> World:
    head = re.fullmatch(
        r"# world machines=([0-9]{1,9}) workers_a_machine=([0-9]{1,9}) length_s=(\S+) name=(.*)",
        lines[0],
    )
    alive = re.fullmatch(r"# alive ?([0-9 ]*)", lines[1]) if len(lines) > 1 else None
    if head is None or alive is None:
        raise ConfigError(f"{name}: expected '# world ...' and '# alive ...' as its first lines")
    try:
        events = tuple(_own_row(row) for row in rows)
        length_s, here = float(head[3]), tuple(map(int, alive[1].split()))
        machines, each = int(head[1]), int(head[2])
    except ValueError as why:
        raise ConfigError(f"{name}: {why}: expected rows {_HEAD}") from why
    return World(head[4], machines, each, length_s, here, events)


def _own_row(row: str) -> WorldEvent:
    at_s, kind, machines, notice_s, factor = row.split(",")
    numbers = tuple(map(int, machines.split()))
    return WorldEvent(float(at_s), WorldKind(kind), numbers, float(notice_s), float(factor))


def _adds_and_removes(rows: Sequence[str], name: str) -> World:
    """A node takes the lowest number that is free."""
    seats: dict[str, int] = {}
    events: list[WorldEvent] = []
    alive, most, last_s = [], 0, 0.0
    for row in rows:
        found = re.fullmatch(r"([0-9]{1,15}),(add|remove),(\S+)", row)
        if found is None or (found[2] == "add") == (found[3] in seats):
            raise ConfigError(
                f"{name}: {row[:40]!r}: expected ms,add|remove,node, a node added once "
                "before it is removed"
            )
        last_s = int(found[1]) / 1000
        if found[2] == "remove":
            events.append(WorldEvent(last_s, WorldKind.LOSS, (seats.pop(found[3]),)))
            continue
        taken = set(seats.values())
        seat = next(number for number in range(len(taken) + 1) if number not in taken)
        seats[found[3]] = seat
        most = max(most, seat + 1)
        if last_s == 0:
            alive.append(seat)
        else:
            events.append(WorldEvent(last_s, WorldKind.RETURN, (seat,)))
    length_s = max(last_s, 1.0)
    return World(name, most, 1, length_s, tuple(alive), _joined(events, length_s))


def _dated(line: str, name: str) -> tuple[float, int]:
    try:
        day, time, count = (word.strip() for word in line.split(","))
        at_s = datetime.fromisoformat(f"{day}T{time}+00:00").timestamp()
        return at_s, int(count)
    except ValueError as why:
        raise ConfigError(f"{name}: {line[:40]!r}: expected date, time, count") from why


def _minutes(line: str, name: str) -> tuple[float, int]:
    try:
        minute, count, *_ = line.split(",")
        return float(minute) * 60, int(count)
    except ValueError as why:
        raise ConfigError(f"{name}: {line[:40]!r}: expected minute,workers,...") from why


def _counts(rows: Sequence[tuple[float, int]], name: str, seed: int) -> World:
    """Who goes is drawn, who comes takes the lowest numbers; all at once, as the count tells."""
    if len(rows) < 2 or min(count for _, count in rows) < 0 or rows[0][1] < 1:
        raise ConfigError(f"{name}: expected at least two counts, none below 0, the first above 0")
    first_s, count = rows[0]
    most = max(number for _, number in rows)
    require_count(f"{name}: machines", most)
    rng, live, events = SeededRandom(seed), list(range(count)), []
    for at_s, number in rows[1:]:
        if number < len(live):
            gone = tuple(sorted(live.pop(rng.below(len(live))) for _ in range(len(live) - number)))
            events.append(WorldEvent(at_s - first_s, WorldKind.LOSS, gone))
        elif number > len(live):
            taken = set(live)
            free = [seat for seat in range(most) if seat not in taken]
            come = tuple(free[: number - len(live)])
            live += come
            events.append(WorldEvent(at_s - first_s, WorldKind.RETURN, come))
    length_s = rows[-1][0] - first_s
    return World(name, most, 1, length_s, tuple(range(count)), tuple(events))


def _joined(events: Sequence[WorldEvent], length_s: float) -> tuple[WorldEvent, ...]:
    """Rows of one moment and kind are one event."""
    groups: dict[tuple[float, WorldKind], list[int]] = {}
    for event in events:
        groups.setdefault((event.at_s, event.kind), []).extend(event.machines)
    return in_order(
        WorldEvent(at_s, kind, tuple(sorted(numbers)))
        for (at_s, kind), numbers in groups.items()
        if at_s < length_s
    )
