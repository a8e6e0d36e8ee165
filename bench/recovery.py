"""What it costs to get a lost stage back, and to be ready for it: all ways, side by side.

overhead: the step with a way to recover over the plain one (checkpoints every 20 steps in both),
nothing happens. Emulated devices (F, B and W sleep 20 ms each) and a real tiny GPT.
recovery: SIGKILL to a worker in the middle, 20 steps past the checkpoint; from the fault until
the step in which it died is finished. "restart" is what users do today: the whole job is killed
at that moment and resumed at once. Emulated: one pipeline of 8 stages, 8 micro-batches. As many
micro-batches as stages leave bubbles with 1f1b, and bubbles are all that a single replayer saves;
zero-bubble has none, so there only helpers make a replay shorter than the steps themselves, and
SWIFT's model, which takes bubbles for granted, promises too much.
The last table has one row a way: times are emulated, bytes and overheads those of the real GPT.

    .venv/bin/python bench/recovery.py [--section recovery] [--rounds 5] [--repeats 1] [--quick]
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attempts import Attempts, cell, headline, rounded
from recovery_cases import HEADLINE, PEERS, PLAIN, REAL, TABLE, WAYS, Case, cases, races
from recovery_pace import Cost, race
from recovery_run import Clean, Outcome, crew_size, predicted_s, prepare, recover, undisturbed

LOGGING_BAR, REPLAY_BAR, PARALLEL_BAR = 1.02, 0.5, 0.2
SECTIONS = ("overhead", "recovery", "all")
# Which variant of the overhead section a way to recover is while nothing happens.
COSTS_AS = {"restart": PLAIN, "no log": PLAIN}
COSTS_AS |= dict.fromkeys(("helpers=0", "helpers=4", "helpers=-1"), "log")

Figures = dict[str, Any]
Outcomes = dict[str, list[Outcome]]


class Bench(Attempts):
    """What was asked for, what was found, and what went wrong."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("recovery")
        self.quick, self.rounds, self.repeats = args.quick, args.rounds, args.repeats
        self.sections = SECTIONS[:-1] if args.section == "all" else (args.section,)
        self.only: str = args.case
        self.costs: dict[str, dict[str, Cost]] = {}  # by race and variant
        self.found: dict[str, Outcomes] = {}  # by case and way
        self.clean: dict[str, Clean] = {}
        self.num_kills = 0


# --- while nothing happens ---


def overhead(bench: Bench) -> Figures:
    headline("Step without failures over the plain one; checkpoints every 20 steps in both")
    names = ("step s", "ratio", "least", "most", "peak MB", "log kB/st", "save kB/st")
    print(" " * 26 + "".join(f"{name:>11}" for name in names), flush=True)
    for which in races(bench.quick):
        if bench.only not in which.name:
            continue
        with bench.place() as folder:
            found = bench.attempt(which.name, partial(race, which, bench.rounds, folder))
        if found is not None:
            bench.costs[which.name] = found
            print_costs(which.name, found)
    logged = [costs["log"].ratio for costs in bench.costs.values()]
    print(f"bar of a log: {LOGGING_BAR}; its median of {bench.rounds} rounds, the worst counts")
    ratios = {name: {v: c.ratio for v, c in costs.items()} for name, costs in bench.costs.items()}
    return {
        "logging_overhead": rounded(max(logged, default=None)),
        "overhead": {
            name: {variant: rounded(ratio) for variant, ratio in found.items()}
            for name, found in ratios.items()
        },
    }


def print_costs(name: str, costs: Mapping[str, Cost]) -> None:
    for variant, cost in costs.items():
        times = [cost.step_s, cost.ratio, min(cost.ratios), max(cost.ratios)]
        per_step = [cost.log_bytes / cost.num_steps / 1e3, cost.saved_bytes / cost.num_steps / 1e3]
        cells = [cell(value, 4) for value in times] + [cell(cost.peak_bytes / 1e6, 1)]
        print(f"{name:14}{variant:12}" + "".join([*cells, *map(cell, per_step)]), flush=True)


# --- after a loss ---


def recovery(bench: Bench) -> Figures:
    for case in cases(bench.quick):
        if bench.only in case.name:
            with bench.place() as folder:
                bench.attempt(case.name, partial(run_case, bench, case, folder))
    head = bench.found.get(HEADLINE, {})
    print(f"\nbars, {HEADLINE}: {REPLAY_BAR} with helpers=0, {PARALLEL_BAR} with helpers=4")
    return {
        "replay_over_restart": over_restart(head, "helpers=0"),
        "parallel_replay_over_restart": over_restart(head, "helpers=4"),
        "kills_fired": bench.num_kills,
        "cases": {name: case_figures(bench, name) for name in bench.found},
    }


def run_case(bench: Bench, case: Case, folder: Path) -> None:
    shape = case.task.shape
    headline(
        f"{case.name}, {shape.pipelines}x{shape.stages} workers, {shape.microbatches} "
        f"micro-batches: '{case.fault}', "
        f"{case.lost_steps} steps past the checkpoint; seconds from the fault"
    )
    (folder / "base").mkdir()
    prepare(case, folder / "base")
    (folder / "clean").mkdir()
    clean = bench.clean[case.name] = undisturbed(case, folder / "base", folder / "clean")
    print(f"a step: {clean.step_s:.4f} s; predicted: the replay alone, by SWIFT and by our model")
    names = ("all work", "step ended", "-1 step", "/restart", "replay", "SWIFT's", "ours")
    counts = ("steps", "replayed", "operations")
    print(" " * 12 + "".join(f"{name:>11}" for name in (*names, *counts)), flush=True)
    found: Outcomes = {}
    bench.found[case.name] = found
    for turn in range(bench.repeats):
        for way in case.ways:
            act = partial(run_way, bench, case, way, folder)
            one = bench.attempt(f"{case.name}, {way}", act)
            if one is not None:
                found.setdefault(way, []).append(one)
                print_way(bench, case, way, one, turn)


def run_way(bench: Bench, case: Case, way: str, folder: Path) -> Outcome:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        found = recover(case, way, bench.clean[case.name], folder / "base", Path(own))
    bench.num_kills += 1
    return found


def print_way(bench: Bench, case: Case, way: str, one: Outcome, turn: int) -> None:
    clean, restarts = bench.clean[case.name], bench.found[case.name].get("restart", [])
    ratio = one.finished_s / restarts[turn].finished_s if len(restarts) > turn else None
    crew = crew_size(case, WAYS[way])
    models = predicted_s(case, clean, crew) if crew else (None, None)
    net_s = one.finished_s - clean.step_s
    times = (one.working_s, one.finished_s, net_s, ratio, one.replay_s, *models)
    counts = (one.steps_again, one.replayed_steps, one.operations_again)
    cells = [cell(value, 2) for value in times] + [f"{count:>11}" for count in counts]
    crew_text = f"  by {one.num_replayers}" if one.num_replayers else ""
    why = f"  {one.why}" if one.why else ""
    print(f"{way:12}" + "".join(cells) + crew_text + why, flush=True)


def median_of(outcomes: Sequence[Outcome], name: str) -> float | None:
    return statistics.median(getattr(one, name) for one in outcomes) if outcomes else None


def over_restart(found: Outcomes, way: str) -> float | None:
    mine = median_of(found.get(way, ()), "finished_s")
    theirs = median_of(found.get("restart", ()), "finished_s")
    return None if mine is None or theirs is None else round(mine / theirs, 4)


def case_figures(bench: Bench, name: str) -> Figures:
    case = next(case for case in cases(bench.quick) if case.name == name)
    clean, found = bench.clean[name], bench.found[name]
    rows = {}
    for way, outcomes in found.items():
        crew = crew_size(case, WAYS[way])
        swift_s, ours_s = predicted_s(case, clean, crew) if crew else (None, None)
        rows[way] = {
            "working_s": rounded(median_of(outcomes, "working_s")),
            "finished_s": rounded(median_of(outcomes, "finished_s")),
            "over_restart": over_restart(found, way),
            "replay_s": rounded(outcomes[0].replay_s),
            "swift_model_s": rounded(swift_s),
            "our_model_s": rounded(ours_s),
            "steps_again": outcomes[0].steps_again,
            "replayed_steps": outcomes[0].replayed_steps,
            "operations_again": outcomes[0].operations_again,
        }
    return {"step_s": rounded(clean.step_s), "ways": rows}


# --- all ways in one table ---


def table(bench: Bench) -> Figures:
    headline(f"All ways: times are {TABLE}, bytes and overhead the real {REAL}")
    names = (
        "steps", "operations", "all work s", "step end s", "memory MB", "kept kB", "log kB/st",
        "save kB/st", "overhead",
    )  # fmt: skip
    print(" " * 16 + "".join(f"{name:>12}" for name in names), flush=True)
    rows = [row_of(bench, TABLE if not bench.quick else HEADLINE, way, way) for way in WAYS]
    rows += [row_of(bench, PEERS, way, f"{way}, 2x4") for way in ("commit", "no log")]
    shown = [row for row in rows if row["finished_s"] is not None or row["overhead"] is not None]
    for row in shown:
        cells = (f"{'-' if value is None else value:>12}" for value in list(row.values())[1:])
        print(f"{row['mode']:16}" + "".join(cells), flush=True)
    print("memory: peak of all workers less the plain run's, which is noisy on so small a model")
    print("undo: what it costs while nothing happens is without the log")
    return {"modes": shown}


def row_of(bench: Bench, case: str, way: str, name: str) -> Figures:
    outcomes = bench.found.get(case, {}).get(way, [])
    costs = {} if case == PEERS else bench.costs.get(REAL, {})
    return {
        "mode": name,
        "steps_again": outcomes[0].steps_again if outcomes else None,
        "operations_again": outcomes[0].operations_again if outcomes else None,
        "working_s": rounded(median_of(outcomes, "working_s"), 2),
        "finished_s": rounded(median_of(outcomes, "finished_s"), 2),
        **bytes_of(costs.get(COSTS_AS.get(way, way)), costs.get(PLAIN)),
    }


def bytes_of(cost: Cost | None, plain: Cost | None) -> Figures:
    if cost is None or plain is None:
        names = ("memory_mb", "kept_kb", "log_kb_per_step", "saved_kb_per_step", "overhead")
        return dict.fromkeys(names)
    return {
        "memory_mb": rounded((cost.peak_bytes - plain.peak_bytes) / 1e6, 1),
        "kept_kb": rounded(cost.kept_bytes / 1e3, 1),
        "log_kb_per_step": rounded(cost.log_bytes / cost.num_steps / 1e3, 1),
        "saved_kb_per_step": rounded(cost.saved_bytes / cost.num_steps / 1e3, 1),
        "overhead": rounded(cost.ratio),
    }


def parse(arguments: Sequence[str] | None = None) -> Bench:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", default="all", choices=SECTIONS)
    parser.add_argument("--rounds", type=int, default=0, help="of the overhead (5)")
    parser.add_argument("--repeats", type=int, default=1, help="of each recovery (1)")
    parser.add_argument("--case", default="", help="only those with this in their name")
    parser.add_argument("--quick", action="store_true", help="a small sample of each section")
    args = parser.parse_args(arguments)
    if args.rounds < 0 or args.repeats < 1:
        parser.error("expected at least one round and one repeat")
    args.rounds = args.rounds or (2 if args.quick else 5)
    return Bench(args)


def main() -> None:
    bench = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that runs are ended
    figures: Figures = {}
    loads = {}  # on a busy machine all of this means little
    for name in bench.sections:
        loads[name] = round(os.getloadavg()[0], 1)
        figures |= {"overhead": overhead, "recovery": recovery}[name](bench)
    figures |= table(bench)
    print(f"\n{json.dumps(figures | {'load': loads, 'failures': bench.failures})}")


if __name__ == "__main__":
    main()
