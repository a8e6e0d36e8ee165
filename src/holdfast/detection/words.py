"""Diagnoses put together, with their evidence in words. What is slow is decided elsewhere."""

import math
from statistics import median

from holdfast.cluster import WorkerId
from holdfast.detection.case import Case
from holdfast.detection.diagnosis import SHORT_OF_CPU, Cause, Diagnosis, Link
from holdfast.detection.links import LinkTrack
from holdfast.detection.workers import Workers, lacks_processor


def compute(workers: Workers, worker: WorkerId, step: int, op_s: float) -> Diagnosis:
    track = workers.tracks[worker]
    peers = [
        excess
        for other, peer in workers.tracks.items()
        if other != worker and (excess := peer.own.newest(3)) is not None
    ]
    words = [_operations("its", track.case, step)]
    words += [f"peers {math.exp(median(peers)):.2f} x"] if peers else []
    cpu_text, hint = _processor(track.case, worker, workers)
    text = ", ".join(words) + _benchmark(track.case) + cpu_text
    return Diagnosis(
        cause=Cause.COMPUTE,
        subject=str(worker),
        factor=track.case.factor,
        excess_s=(track.case.factor - 1) * op_s,
        since=track.case.since,
        confidence=track.case.confidence,
        evidence=text,
        workers=(worker,),
        hint=hint,
    )


def machine(workers: Workers, name: str, step: int, op_s: float) -> Diagnosis:
    case, there = workers.machines[name].case, workers.on(name)
    factors = [workers.tracks[worker].cpu_factor(case.since, case) for worker in there]
    known = [factor for factor in factors if factor is not None]
    text = _operations(f"all {len(there)} workers on it at once:", case, step) + _benchmark(case)
    text += f"; CPU time {median(known):.1f} x" if known else ""
    lacks = bool(known) and lacks_processor(median(known), case)
    text += f": they are {SHORT_OF_CPU}" if lacks else ""
    return Diagnosis(
        cause=Cause.MACHINE,
        subject=name,
        factor=case.factor,
        excess_s=(case.factor - 1) * op_s,
        since=case.since,
        confidence=case.confidence,
        evidence=text,
        workers=tuple(there),
        hint=SHORT_OF_CPU if lacks else "",
    )


def link(pair: Link, track: LinkTrack, step: int) -> Diagnosis:
    case = track.case
    assert track.told is not None
    _, moved_s, base_s = track.told
    num_steps = max(1, step - case.since + 1)
    text = (
        f"its messages take {_ms(moved_s)} since step {case.since + 1} ({num_steps} steps), "
        f"{_ms(base_s)} before"
    )
    if track.probe is not None and case.probe is not None:
        text += f"; measured alone {_ms(track.probe[1].moved_s)}"
        text += f", expected {_ms(track.probe[1].base_s)}"
    return Diagnosis(
        cause=Cause.LINK,
        subject=f"{pair[0]}-{pair[1]}",
        factor=moved_s / max(base_s, 1e-6),
        excess_s=max(0.0, moved_s - base_s),
        since=case.since,
        confidence=case.confidence,
        evidence=text,
        workers=pair,
    )


def _operations(whose: str, case: Case, step: int) -> str:
    num_steps = max(1, step - case.since + 1)
    since = "from the start" if case.from_start else f"since step {case.since + 1}"
    return f"{whose} operations take {case.factor:.2f} x as long {since} ({num_steps} steps)"


def _benchmark(case: Case) -> str:
    if case.probe is None:
        return ""
    ratio = math.exp(case.probe)
    if case.from_start:
        return f"; benchmark {ratio:.2f} x the others'"
    seen = "" if case.probe >= 0.5 * case.excess else ", which does not show it"
    return f"; benchmark {ratio:.2f} x its own at the start{seen}"


def _processor(case: Case, worker: WorkerId, workers: Workers) -> tuple[str, str]:
    """For the evidence, and for the hint."""
    factor = workers.tracks[worker].cpu_factor(case.since, case)
    if factor is None:
        return "", ""
    lacks = lacks_processor(factor, case)
    more = f": it is {SHORT_OF_CPU}" if lacks else ""
    return f"; CPU time {factor:.1f} x{more}", SHORT_OF_CPU if lacks else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
