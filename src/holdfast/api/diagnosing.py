"""Why a job was slow, from a recorded trace of any system or from the directory of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.detection.live.recorded import RunOutcome, look
from holdfast.detection.trace.causes import Findings, find_causes
from holdfast.detection.trace.graph import graph_of
from holdfast.detection.trace.trace import OPTIONAL, WANTED, Trace, TraceLayout, trace_of
from holdfast.detection.trace.whatif import WhatIf, what_if
from holdfast.errors import ConfigError
from holdfast.observability.log import EVENTS_FILE, read_events

Unit = Literal["s", "ms", "us", "ns"]
UNITS: dict[Unit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class TraceOutcome(NamedTuple):
    """What a recorded trace tells."""

    source: str
    trace: Trace
    numbers: WhatIf
    found: Findings


def diagnose(
    path: str | Path,
    *,
    layout: TraceLayout | None = None,
    unit: Unit = "s",
    doing: Callable[[str], object] = lambda what: None,
) -> TraceOutcome | RunOutcome:
    """Who was slow, since when, how much.

    ``path`` is a trace of operations (Parquet), or the directory of a run. ``layout`` and
    ``unit`` are of a trace. ``doing`` is told what is being done: large traces take minutes.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory; expected a trace or a run")
    return _run(path, doing) if path.is_dir() else _trace(path, layout, UNITS[unit], doing)


def _trace(
    path: Path, layout: TraceLayout | None, unit_s: float, doing: Callable[[str], object]
) -> TraceOutcome:
    doing(f"reading {path}")
    trace = read_trace(path, layout, unit_s)
    doing(f"finding the order of {trace.size} operations")
    graph = graph_of(trace)
    doing("replaying it with each worker alone as recorded")
    numbers = what_if(graph)
    doing("looking for causes")
    return TraceOutcome(str(path), trace, numbers, find_causes(graph))


def _run(run_dir: Path, doing: Callable[[str], object]) -> RunOutcome:
    path = run_dir / EVENTS_FILE
    if not path.exists():
        raise ConfigError(f"{run_dir} holds no {EVENTS_FILE}: expected the directory of a run")
    doing(f"reading {path}")
    events = read_events(path)
    doing(f"looking at {len(events)} events")
    return look(str(run_dir), events)


def read_trace(path: Path, layout: TraceLayout | None = None, unit_s: float = 1.0) -> Trace:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            "reading Parquet needs pyarrow, which is not installed: pip install 'holdfast[traces]'"
        ) from None
    try:
        names = [name for name in parquet.read_schema(path).names if name in (*WANTED, *OPTIONAL)]
        read = parquet.read_table(path, columns=names)
        columns = {name: read[name].to_numpy(zero_copy_only=False) for name in names}
    # Text that is not UTF-8, and two columns of one name, are noticed only when they are used.
    except (ArrowException, OSError, UnicodeDecodeError, KeyError) as why:
        first = str(why).splitlines()[0] if str(why) else type(why).__name__
        raise ConfigError(f"{path} cannot be read as a Parquet file: {first}") from why
    return trace_of(columns, layout=layout, unit_s=unit_s, source=str(path))
