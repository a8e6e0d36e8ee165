"""How much of a slowdown is removed, by the wall clock: detection, pauses and all.

slow: real processes and transport on emulated devices (F, B and W sleep 10 ms each, with 8
pipelines 30 ms: sixteen processes share this machine). Every run has
healthy steps, then disturbed ones. A step's time is the mean over all disturbed ones, from the end
of the last healthy one. removed = (nothing - way) / (nothing - healthy); possible: the same for
the planner's bound with the true speeds, scaled by measured over predicted healthy step (slow links
count as usual there). Ways: "nothing" is only told; "falcon" shares micro-batches among whole
pipelines (what it would restart is not charged); "restart" is interrupted when the slow worker is
named, and resumed without it.
stall: around a change of lanes, the longest time in which nobody runs an operation, less the usual
longest one of a step. excess: what the two steps before a change and the two from it on took longer
than the four on either side.
no-harm: nothing is injected; what false alarms cost. overhead: step with tracking over without.

    .venv/bin/python bench/failslow.py [--section slow] [--case "4x2 x2"] [--rounds 3] [--quick]
"""

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attempts import Attempts, cell, headline, rounded
from failslow_cases import (
    LONG_OP_MS,
    MANY,
    MODES,
    OP_MS,
    Case,
    bound_s,
    cases,
    shares_of,
    undisturbed,
)
from failslow_run import Calm, Measured, median_step_s, run_calm, run_case
from failstop_run import Job

QUICK_CASE, QUICK_WAYS = "2x2 x2", ("nothing", "holdfast")
MS = f"{OP_MS}, with {MANY} pipelines {LONG_OP_MS}"

Figures = dict[str, Any]
Outcomes = dict[str, list[Measured]]  # by way, one a round


class Bench(Attempts):
    """What was asked for, and what went wrong."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("failslow", args.keep)
        self.quick, self.steps, self.rounds = args.quick, args.steps, args.rounds
        self.minutes = args.minutes
        self.sections: list[str] = args.section or list(SECTIONS)
        default = [QUICK_CASE] if args.quick else list(cases())
        self.cases = [cases()[name] for name in args.case or default if name in cases()]
        if args.op_ms is not None:
            self.cases = [replace(case, op_ms=args.op_ms) for case in self.cases]
        calm = undisturbed(args.op_ms or OP_MS)
        self.calm = {name: job for name, job in calm.items() if name in (args.case or calm)}
        self.ways: tuple[str, ...] = args.ways or (QUICK_WAYS if args.quick else tuple(MODES))


# --- somebody is slow ---


def slow(bench: Bench) -> Figures:
    rows: dict[str, Figures] = {}
    for case in bench.cases:
        faults = ", ".join(case.job("nothing", bench.steps).faults)
        size = f"{bench.steps} disturbed steps, {case.op_ms} ms operations"
        headline(f"{case.name}: {faults}; emulated, {size}; s a step")
        found = outcomes(bench, case)
        if any(found.values()):
            rows[case.name] = row = case_figures(bench, case, found)
            print_case(row)
    shares = {
        case.name: rows.get(case.name, {}).get("ways", {}).get("holdfast", {}).get("of_possible")
        for case in bench.cases
        if case.is_headline
    }
    mine = [row["ways"]["holdfast"] for row in rows.values() if "holdfast" in row["ways"]]
    return {
        "emulated": True,
        "worst_share_of_possible_removed": least(shares.values()),
        "headlines_without_figure": [name for name, share in shares.items() if share is None],
        "replan_stall_s": most(row["stall_s"] for row in mine),
        "replan_excess_s": most(row["excess_s"] for row in mine),
        "num_named_not_injected": sum(len(row["wrong"]) for row in mine),
        "cases": rows,
    }


def outcomes(bench: Bench, case: Case) -> Outcomes:
    """Ways by turns, so that drifts of the machine hit all alike."""
    ways = [way for way in case.ways if way in bench.ways]
    found: Outcomes = {way: [] for way in ways}
    for number in range(bench.rounds):
        for way in ways[:: 1 if number % 2 == 0 else -1]:
            act = partial(run_case, case, way, bench.steps)
            one = bench.attempt_in_place(f"{case.name}, {way}", act)
            if one is not None:
                found[way].append(one)
    return found


def case_figures(bench: Bench, case: Case, found: Outcomes) -> Figures:
    """``healthy_s``: the median of all runs of the case."""
    healthy_s = statistics.median(one.healthy_s for many in found.values() for one in many)
    limit_s = bound_s(case, bench.steps, healthy_s)
    nothing_s = median_of(found.get("nothing", ()), "step_s")
    rows = {}
    for way, many in found.items():
        if many:
            step_s = median_of(many, "step_s")
            assert step_s is not None
            shares = shares_of(step_s, nothing_s, healthy_s, limit_s)
            rows[way] = way_figures(many, shares, case.shape.microbatches)
    return {
        "emulated": True,
        "op_ms": case.op_ms,
        "faults": list(case.job("nothing", bench.steps).faults),
        "healthy_s": rounded(healthy_s),
        "nothing_s": rounded(nothing_s),
        "bound_s": rounded(limit_s),
        "ways": rows,
    }


def way_figures(
    many: Sequence[Measured], shares: Mapping[str, float | None], num_microbatches: int
) -> Figures:
    """Times are medians of the rounds; delays and stalls the worst of all rounds."""
    step_s = median_of(many, "step_s")
    assert step_s is not None
    changes = [switch for one in many for switch in one.switches]
    delays = [delay for one in many for delay in one.delays.values()]
    return {
        "step_s": rounded(step_s),
        "steady_s": rounded(median_of(many, "steady_s")),
        "after_s": rounded(median_of(many, "after_s")),
        "microbatches_per_s": round(num_microbatches / step_s, 2),
        **{name: rounded(value) for name, value in shares.items()},
        "delay_steps": most(delay for delay in delays if delay is not None),
        "num_missed": sum(delay is None for delay in delays),
        "delays": [one.delays for one in many],
        "wrong": sorted({name for one in many for name in one.wrong}),
        "actions": [list(one.actions) for one in many],
        "num_switches": len(changes),
        "stall_s": most(switch.stall_s for switch in changes),
        "excess_s": most(s.excess_s for s in changes if s.excess_s is not None),
        "stop_s": rounded(max(one.stop_s for one in many)),
        "pause_s": rounded(median_of(many, "pause_s")),
        "rounds_s": [rounded(one.step_s) for one in many],
        "rounds_healthy_s": [rounded(one.healthy_s) for one in many],
    }


def print_case(row: Figures) -> None:
    print(f"healthy {row['healthy_s']}, bound {row['bound_s']}, samples: micro-batches")
    names = (
        "step", "steady", "after", "samples/s", "removed", "/possible", "delay", "missed",
        "switches", "stall", "excess", "stop", "pause",
    )  # fmt: skip
    print(" " * 9 + "".join(f"{name:>11}" for name in names))
    keys = (
        "step_s", "steady_s", "after_s", "microbatches_per_s", "removed", "of_possible",
        "delay_steps", "num_missed", "num_switches", "stall_s", "excess_s", "stop_s", "pause_s",
    )  # fmt: skip
    for way, figures in row["ways"].items():
        cells = (cell(v, 0 if isinstance(v, int) else 4) for v in map(figures.get, keys))
        wrong = f"  named, not injected: {', '.join(figures['wrong'])}" if figures["wrong"] else ""
        print(f"{way:9}" + "".join(cells) + wrong)
        for actions in filter(None, figures["actions"]):
            print(" " * 11 + ", ".join(actions))
    print(end="", flush=True)


def median_of(many: Sequence[Measured], name: str) -> float | None:
    return statistics.median(getattr(one, name) for one in many) if many else None


def most(values: Iterable[float | None]) -> float | None:
    return rounded(max((value for value in values if value is not None), default=None))


def least(values: Iterable[float | None]) -> float | None:
    return rounded(min((value for value in values if value is not None), default=None))


# --- nobody is slow ---


def no_harm(bench: Bench) -> Figures:
    headline(f"Nothing is injected, mitigation is on, {bench.minutes:g} minutes each")
    names = ("steps", "step s", "named", "mitigated", "lost s", "share")
    print(" " * 14 + "".join(f"{name:>11}" for name in names), flush=True)
    calm: dict[str, Calm] = {}
    for name, job in bench.calm.items():
        act = partial(run_calm, job, bench.minutes)
        one = bench.attempt_in_place(f"{name}, undisturbed", act)
        if one is not None:
            calm[name] = one
            counts = (f"{n:>11}" for n in (len(one.named), one.num_mitigations))
            cells = (cell(one.step_s), *counts, cell(one.lost_s, 2), cell(harm_share(one)))
            print(f"{name:14}{one.num_steps:>11}" + "".join(cells), ", ".join(one.named))
    return {
        "harm_share": most(harm_share(one) for one in calm.values()),
        "num_mitigations": sum(one.num_mitigations for one in calm.values()),
        "num_named": sum(len(one.named) for one in calm.values()),
        "undisturbed": {name: one._asdict() for name, one in calm.items()},
    }


def harm_share(one: Calm) -> float:
    """Of the throughput."""
    return one.lost_s / one.whole_s


def overhead(bench: Bench) -> Figures:
    rounds = max(bench.rounds, 1 if bench.quick else 5)
    headline(f"Median step with tracking (observe) over without (off), {rounds} rounds")
    print(" " * 14 + "".join(f"{name:>11}" for name in ("ratio", "least", "most")), flush=True)
    ratios: dict[str, list[float]] = {}
    for name, job in bench.calm.items():
        ratios[name] = []
        for number in range(rounds):
            ratio = turn(bench, f"{name}, tracking", job, number)
            if ratio is not None:
                ratios[name].append(ratio)
        if own := ratios[name]:
            folds = (statistics.median(own), min(own), max(own))
            print(f"{name:14}" + "".join(map(cell, folds)), flush=True)
    medians = {name: statistics.median(own) - 1 for name, own in ratios.items() if own}
    return {
        "tracking_overhead": most(medians.values()),
        "tracking_ratios": {name: [rounded(r) for r in own] for name, own in ratios.items()},
    }


def turn(bench: Bench, what: str, job: Job, number: int) -> float | None:
    """One run each; every second time in the other order. Real steps are short: there are more."""
    is_emulated = any(setting.startswith("device.emulate=") for setting in job.settings)
    num_steps = bench.steps * (1 if is_emulated else 4)
    found: dict[str, float | None] = {}
    for mode in ("off", "observe")[:: 1 if number % 2 == 0 else -1]:
        found[mode] = bench.attempt_in_place(what, partial(median_step_s, job, mode, num_steps))
    on_s, off_s = found["observe"], found["off"]
    return None if on_s is None or off_s is None else on_s / off_s


SECTIONS: dict[str, Callable[[Bench], Figures]] = {
    "slow": slow,
    "no-harm": no_harm,
    "overhead": overhead,
}


def _ways(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(","))
    for way in found:
        if way not in MODES:
            raise argparse.ArgumentTypeError(f"{way!r} is no way, expected {', '.join(MODES)}")
    return found


def parse(arguments: Sequence[str] | None = None) -> Bench:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help="only these")
    parser.add_argument(
        "--case", action="append", choices=[*cases(), *undisturbed()], help="only these"
    )
    parser.add_argument("--ways", type=_ways, help="e.g. nothing,holdfast (all that fit a case)")
    parser.add_argument("--steps", type=int, default=0, help="disturbed ones of a run (90)")
    parser.add_argument("--rounds", type=int, default=1, help="ways take turns (1)")
    parser.add_argument("--minutes", type=float, default=0.0, help="of an undisturbed run (5)")
    parser.add_argument("--op-ms", type=int, help=f"of an emulated operation ({MS})")
    parser.add_argument("--quick", action="store_true", help="a small sample of each section")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs' directories")
    args = parser.parse_args(arguments)
    args.steps = args.steps or (30 if args.quick else 90)
    args.minutes = args.minutes or (0.2 if args.quick else 5.0)
    numbers = (args.op_ms, args.minutes, args.rounds, args.steps - 19)
    if any(number is not None and number <= 0 for number in numbers):
        parser.error("expected at least 20 steps, 1 round, operations of 1 ms and some minutes")
    return Bench(args)


def main() -> None:
    bench = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that runs are ended
    figures: Figures = {}
    loads = {}  # on a busy machine all of this means little
    for name in bench.sections:
        loads[name] = round(os.getloadavg()[0], 1)
        figures |= SECTIONS[name](bench)
    print(f"\n{json.dumps(figures | {'load': loads, 'failures': bench.failures})}")


if __name__ == "__main__":
    main()
