"""What a death costs: how long all others stand still, and how fast they train afterwards.

Real processes and transport on emulated devices: F, B and W sleep 20 ms each.

stall: from a SIGKILL, to any worker at any moment, to the next operation of the last survivor;
"ready" leaves out survivors that must first wait for lost work to be done again, or for a
pipeline to fill.
hang: the same from a SIGSTOP, with a heartbeat timeout of 1 s. throughput: the steady step with
some dead over the period that the plan predicts, beside two policies on the same runtime: whole
pipelines dropped, and re-routing alone. restart: the whole run is killed and resumed from a
checkpoint; what one such failure costs.

    .venv/bin/python bench/failstop.py [--section stall] [--kills 20] [--quick]
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from attempts import Attempts, cell, headline
from failstop_pace import (
    DEATHS,
    PER_PIPELINE,
    Pace,
    dropped_pace,
    job_of,
    num_whole,
    rerouted_pace,
    restart,
    settled,
    steady_pace,
)
from failstop_run import START_LIMIT_S, Job, Run, Trial, names, trial_of
from holdfast.observability.events import FaultFired, StepFinished

HEARTBEAT_TIMEOUT_S = 1.0
STALL_BAR_S = {"2x2": 0.120, "4x4": 0.250}
HANG_BAR_S, PERIOD_BAR = HEARTBEAT_TIMEOUT_S + 0.150, 1.05
# Steps from one death to the next, and from a death to the order to start the worker again.
GAP_STEPS, ABSENT_STEPS = 10, 3
KILLS_A_RUN, MOST_FAILED = 10, 3
CHANGE_LIMIT_S = 60.0

Figures = dict[str, Any]


class Bench(Attempts):
    """What was asked for, and what went wrong."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("failstop", args.keep)
        self.quick, self.kills, self.steps = args.quick, args.kills, args.steps
        self.point: str = args.point
        self.restarts = 1 if args.quick else 3
        self.sections: list[str] = args.section or list(SECTIONS)


# --- how long everyone stands still ---


class Attack(NamedTuple):
    """Who is struck in a run, one after the other, how, and where in a step (empty: anywhere)."""

    victims: Sequence[str]
    number: signal.Signals
    point: str

    @property
    def faults(self) -> list[str]:
        """Somebody is started again some steps after each strike."""
        turns = range(1, len(self.victims) + 1)
        joins = [f"join @ {GAP_STEPS * turn}" for turn in turns]
        return joins + [self.fault(turn) for turn in turns if self.point]

    def fault(self, turn: int) -> str:
        word = "kill" if self.number == signal.SIGKILL else "hang"
        return f"{word} {self.victims[turn - 1]} @ {self.step(turn) + 1}.{self.point}"

    def step(self, turn: int) -> int:
        """Counted from 0."""
        return GAP_STEPS * turn - ABSENT_STEPS - 1


def strikes(run: Run, attack: Attack, rng: random.Random) -> Iterator[Trial]:
    """Only as long as the cluster is whole before each."""
    for turn, victim in enumerate(attack.victims, start=1):
        step = attack.step(turn)
        run.wait_for_step(step, START_LIMIT_S if turn == 1 else CHANGE_LIMIT_S)
        if run.next_step > step + 1 or not run.is_whole:
            return  # late: the next one would be started again while the others still stop
        signal_s = strike(run, attack, turn, rng)
        judged = partial(trial_of, run.events, run.job.shape, victim, signal_s)
        yield run.wait(f"all went on without {victim}", judged, CHANGE_LIMIT_S)
        if attack.number == signal.SIGSTOP:
            run.strike(victim, signal.SIGKILL)
        run.wait(f"{victim} was back", lambda: run.is_whole, CHANGE_LIMIT_S)


def strike(run: Run, attack: Attack, turn: int, rng: random.Random) -> float:
    """When it was: at any moment of a step, or at the point."""
    if not attack.point:
        time.sleep(rng.uniform(0, run.of(StepFinished)[-1].took_s))
        return run.strike(attack.victims[turn - 1], attack.number)
    fault = attack.fault(turn)

    def fired_s() -> float | None:
        return next((event.at_s for event in run.of(FaultFired) if event.fault == fault), None)

    return run.wait(f"'{fault}'", fired_s, CHANGE_LIMIT_S)


def trials(bench: Bench, kills: int, number: signal.Signals, job: Job) -> list[Trial]:
    """Over as many runs as it takes. ``job``: without its faults and steps."""
    found: list[Trial] = []
    num_failed, rng = 0, random.Random(f"{job.num_workers} {number}")

    def run_one() -> None:
        workers = names(job.shape)
        order = rng.sample(workers, len(workers)) * kills
        attack = Attack(order[: min(KILLS_A_RUN, kills - len(found))], number, bench.point)
        steps = GAP_STEPS * (len(attack.victims) + 2)
        armed = replace(job, faults=attack.faults, steps=steps)
        with bench.place() as folder, Run(armed, folder) as run:
            for trial in strikes(run, attack, rng):
                found.append(trial)  # one by one: what comes before a failure counts

    while len(found) < kills and num_failed < MOST_FAILED:
        before = len(found), len(bench.failures)
        bench.attempt(number.name, run_one)
        num_failed += len(found) == before[0] or len(bench.failures) > before[1]
    return found


def stall_job(pipelines: int, stages: int, *settings: str) -> Job:
    return Job(
        pipelines=pipelines,
        stages=stages,
        microbatches=PER_PIPELINE,
        settings=("checkpoint.every_steps=0", *settings),
    )


def print_trials(name: str, found: Sequence[Trial], bar_s: float) -> Figures:
    """Also returns the median of the stall, the most, and the median up to those who can run."""
    if not found:
        print(f"{name:>5}: no trial worked")
        return dict.fromkeys(("median", "most", "ready"))
    folds: dict[str, Callable[[Sequence[float]], float]]
    folds = {"median": statistics.median, "least": min, "most": max}
    for what, fold in folds.items():
        cells = "".join(f"{fold(times) * 1e3:10.1f}" for times in zip(*found, strict=True))
        print(f"{name:>5}{len(found):>4} {what:7}{cells}")
    times_s = [trial.operation_s for trial in found]
    print(f"{'':5}bar: {bar_s * 1e3:.0f}, kept by {sum(t <= bar_s for t in times_s)}", flush=True)
    ready_s = statistics.median(trial.ready_s for trial in found)
    row = {"median": statistics.median(times_s), "most": max(times_s), "ready": ready_s}
    return {name: round(value, 4) for name, value in row.items()}


def stall_headline(text: str) -> None:
    headline(text)
    names = ("notice", "stopped", "plan", "ready", "operation", "(reported)")
    print(" " * 17 + "".join(f"{name:>10}" for name in names), flush=True)


def stalls(bench: Bench) -> Figures:
    stall_headline("From a SIGKILL to all survivors' next operation, ms")
    rows = {}
    for name, size in {"2x2": (2, 2), "4x4": (4, 4)}.items():
        if name == "2x2" or not bench.quick:
            found = trials(bench, bench.kills, signal.SIGKILL, stall_job(*size))
            rows[name] = print_trials(name, found, STALL_BAR_S[name])
    return {
        "stall_s": {name: row["median"] for name, row in rows.items()},
        "most_stall_s": {name: row["most"] for name, row in rows.items()},
        "ready_s": {name: row["ready"] for name, row in rows.items()},
    }


def hangs(bench: Bench) -> Figures:
    stall_headline(f"From a SIGSTOP, ms, with a heartbeat timeout of {HEARTBEAT_TIMEOUT_S:g} s")
    job = stall_job(2, 2, f"workers.heartbeat_timeout_s={HEARTBEAT_TIMEOUT_S:g}")
    found = trials(bench, max(1, bench.kills // 2), signal.SIGSTOP, job)
    row = print_trials("2x2", found, HANG_BAR_S)
    return {
        "hang_stall_s": row["median"],
        "most_hang_stall_s": row["most"],
        "hang_ready_s": row["ready"],
    }


# --- how fast they train on ---


def throughput(bench: Bench) -> Figures:
    headline("Steady step with some dead, s; 4x4 workers, 32 micro-batches, memory for 8")
    names = ("step", "mean", "plan", "refined", "bound", "step/plan", "dropped", "re-routed")
    print(" " * 24 + "".join(f"{name:>11}" for name in names), flush=True)
    job = job_of(4, PER_PIPELINE, "checkpoint.every_steps=0")
    whole = bench.attempt("nobody dead", lambda: steady_pace(job, bench.steps, bench.place()))
    print(f"{'nobody':24}" + "".join(map(cell, whole or ())), flush=True)
    rows, dropped = {}, dict[int, Pace | None]()
    for name, dead in list(DEATHS.items())[: 1 if bench.quick else None]:
        rows[name] = row = deaths(bench, dead, dropped)
        print(f"{name:24}" + "".join(map(cell, row.values())), ", ".join(dead), flush=True)
    ratios = [row["over_plan"] for row in rows.values() if row["over_plan"] is not None]
    print(f"step/plan: bar {PERIOD_BAR}; a refined plan is adopted if it gains 1 %")
    return {
        "worst_period_over_plan": max(ratios, default=None),
        "fault_free_s": whole and round(whole.step_s, 4),
        "with_dead": {name: row | {"dead": DEATHS[name]} for name, row in rows.items()},
    }


def deaths(
    bench: Bench, dead: Sequence[str], dropped: dict[int, Pace | None]
) -> dict[str, float | None]:
    """``dropped``: by the number of pipelines that are left; filled as they come up."""
    num = num_whole(dead)
    mine = bench.attempt("with dead", lambda: settled(dead, bench.steps, bench.place()))
    if num and num not in dropped:
        dropped[num] = bench.attempt(
            "pipelines dropped", lambda: dropped_pace(num, bench.steps, bench.place())
        )
    pace = dropped.get(num)
    routed = bench.attempt("re-routed", lambda: rerouted_pace(dead, bench.steps, bench.place()))
    row = {
        "step_s": mine and mine.pace.step_s,
        "mean_s": mine and mine.pace.mean_s,
        "plan_s": mine and mine.plan_s,
        "refined_s": mine and mine.refined_s,
        "bound_s": mine and mine.bound_s,
        "over_plan": mine and mine.pace.step_s / mine.plan_s,
        "dropped_s": pace and pace.step_s,
        "rerouted_s": routed and routed.step_s,
    }
    return {name: None if value is None else round(value, 4) for name, value in row.items()}


def restarts(bench: Bench) -> Figures:
    headline("Restart from a checkpoint, one every 10 steps; 4x4 workers, s")
    rng = random.Random(0)
    tried = [
        bench.attempt("restart", lambda: restart(rng, bench.place())) for _ in range(bench.restarts)
    ]
    found = [one for one in tried if one is not None]
    for one in found:
        print(
            f"first step after {one.first_step_s:.2f}, all {one.num_lost} lost steps made up after "
            f"{one.caught_up_s:.2f}; a step {one.step_s:.3f}",
            flush=True,
        )

    def median(name: str) -> float | None:
        return round(statistics.median(getattr(r, name) for r in found), 4) if found else None

    return {"restart": {n: median(n) for n in ("first_step_s", "caught_up_s", "num_lost")}}


SECTIONS: dict[str, Callable[[Bench], Figures]] = {
    "stall": stalls,
    "hang": hangs,
    "throughput": throughput,
    "restart": restarts,
}


def parse(arguments: Sequence[str] | None = None) -> Bench:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help="only these")
    parser.add_argument("--kills", type=int, default=0, help="per size (20); half of it for hang")
    parser.add_argument("--point", default="", help="strike there in a step, e.g. B1 (anywhere)")
    parser.add_argument("--steps", type=int, default=0, help="measured ones of a run (20)")
    parser.add_argument("--quick", action="store_true", help="a small sample of each section")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs' directories")
    args = parser.parse_args(arguments)
    if args.kills < 0 or args.steps < 0:
        parser.error("expected at least one kill and one step")
    args.kills = args.kills or (2 if args.quick else 20)
    args.steps = args.steps or (5 if args.quick else 20)
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
