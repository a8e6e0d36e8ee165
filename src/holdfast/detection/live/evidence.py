"""Diagnoses put together, with their evidence in words. What is slow is decided elsewhere."""

import math
from statistics import median

from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import SHORT_OF_CPU, Cause, Diagnosis, Link
from holdfast.detection.live.investigation import Investigation
from holdfast.detection.live.links.link_tracks import LinkTrack
from holdfast.detection.live.workers import Workers, lacks_processor


def compute(workers: Workers, worker: WorkerId, step: int, op_s: float) -> Diagnosis:
    track = workers.tracks[worker]
    peers = [
        excess
        for other, peer in workers.tracks.items()
        if other != worker and (excess := peer.own.newest(3)) is not None
    ]
    words = [_operations("its", track.investigation, step)]
    words += [f"peers {math.exp(median(peers)):.2f} x"] if peers else []
    cpu_text, hint = _processor(track.investigation, worker, workers)
    text = ", ".join(words) + _benchmark(track.investigation) + cpu_text
    return Diagnosis(
        cause=Cause.COMPUTE,
        subject=str(worker),
        factor=track.investigation.factor,
        excess_s=(track.investigation.factor - 1) * op_s,
        since=track.investigation.since,
        confidence=track.investigation.confidence,
        evidence=text,
        workers=(worker,),
        hint=hint,
    )


def machine(workers: Workers, name: str, step: int, op_s: float) -> Diagnosis:
    investigation, there = workers.machines[name].investigation, workers.on(name)
    factors = [
        workers.tracks[worker].cpu_factor(investigation.since, investigation) for worker in there
    ]
    known = [factor for factor in factors if factor is not None]
    text = _operations(
        f"all {len(there)} workers on it at once:", investigation, step
    ) + _benchmark(investigation)
    text += f"; CPU time {median(known):.1f} x" if known else ""
    lacks = bool(known) and lacks_processor(median(known), investigation)
    text += f": they are {SHORT_OF_CPU}" if lacks else ""
    return Diagnosis(
        cause=Cause.MACHINE,
        subject=name,
        factor=investigation.factor,
        excess_s=(investigation.factor - 1) * op_s,
        since=investigation.since,
        confidence=investigation.confidence,
        evidence=text,
        workers=tuple(there),
        hint=SHORT_OF_CPU if lacks else "",
    )


def link(pair: Link, track: LinkTrack, step: int) -> Diagnosis:
    investigation = track.investigation
    assert track.told is not None
    moved_s, base_s = track.told.moved_s, track.told.base_s
    num_steps = max(1, step - investigation.since + 1)
    text = (
        f"its messages take {_ms(moved_s)} since step {investigation.since + 1} ({num_steps} "
        "steps), "
        f"{_ms(base_s)} before"
    )
    if track.told.way is not None:
        source, to = track.told.way
        text += f", only from {source} to {to}"
    if track.probe is not None and investigation.probe is not None:
        text += f"; measured alone {_ms(track.probe[1].moved_s)}"
        text += f", expected {_ms(track.probe[1].base_s)}"
    return Diagnosis(
        cause=Cause.LINK,
        subject=f"{pair[0]}-{pair[1]}",
        factor=moved_s / max(base_s, 1e-6),
        excess_s=max(0.0, moved_s - base_s),
        since=investigation.since,
        confidence=investigation.confidence,
        evidence=text,
        workers=pair,
    )


def _operations(whose: str, investigation: Investigation, step: int) -> str:
    num_steps = max(1, step - investigation.since + 1)
    since = (
        "from the start" if investigation.from_start else f"since step {investigation.since + 1}"
    )
    return (
        f"{whose} operations take {investigation.factor:.2f} x as long {since} ({num_steps} steps)"
    )


def _benchmark(investigation: Investigation) -> str:
    if investigation.probe is None:
        return ""
    ratio = math.exp(investigation.probe)
    if investigation.from_start:
        return f"; benchmark {ratio:.2f} x the others'"
    seen = "" if investigation.probe >= 0.5 * investigation.excess else ", which does not show it"
    return f"; benchmark {ratio:.2f} x its own at the start{seen}"


def _processor(investigation: Investigation, worker: WorkerId, workers: Workers) -> tuple[str, str]:
    """For the evidence, and for the hint."""
    factor = workers.tracks[worker].cpu_factor(investigation.since, investigation)
    if factor is None:
        return "", ""
    lacks = lacks_processor(factor, investigation)
    more = f": it is {SHORT_OF_CPU}" if lacks else ""
    return f"; CPU time {factor:.1f} x{more}", SHORT_OF_CPU if lacks else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
