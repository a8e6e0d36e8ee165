"""The hunt: random worlds against the real control code, and deliberate bugs that it has to find.

All simulated, in virtual time. Events a second are of one process and of its own CPU time; a hunt
of 1 to 9 workers.

    .venv/bin/python bench/hunt.py [--seeds 10000] [--seed 0] [--mutants]
        [--only NAME ...] [--limit 2000]
"""

import argparse
import json
import time
from typing import Any

from holdfast.simulator.hunt.drawing import draw
from holdfast.simulator.hunt.hunting import hunted, judge
from hunt_mutants import MUTANTS, Mutant, applied

_CHUNK = 100


def warm_up() -> None:
    """Compilers, and what is loaded once."""
    judge(draw("warm"))


def hunt_all(first: int, seeds: int) -> dict[str, Any]:
    num_events, num_seeds, start_s = 0, 0, time.process_time()
    failing = None
    while num_seeds < seeds and failing is None:
        found = hunted(first + num_seeds, min(_CHUNK, seeds - num_seeds))
        num_events += found.num_events
        num_seeds += found.num_seeds
        failing = found.failing
    took_s = time.process_time() - start_s
    print(f"{num_seeds} seeds, {num_events} events, {took_s:.0f} CPU-s")
    if failing is not None:
        print(f"seed {failing.scenario.seed}: {failing.wrong}\n{failing.scenario}")
    good = num_seeds - (failing is not None)
    return {"hunt_seeds": good, "hunt_events_s": round(num_events / max(took_s, 1e-9))}


def find(mutant: Mutant, limit: int) -> int | None:
    """After how many seeds; None: not at all. One that fails without it, too, does not count."""
    number, what = 0, "not found"
    while number < limit:
        with applied(mutant):
            found = hunted(number, limit - number)
        number += found.num_seeds
        if found.failing is not None and not judge(found.failing.scenario).wrong:
            what = found.failing.wrong.splitlines()[0][:90]
            break
    is_found = what != "not found"
    print(f"{mutant.name:18}{mutant.kind:10}{number if is_found else '-':>6}  {what}", flush=True)
    return number if is_found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--only", nargs="*", default=[], help="deliberate bugs of these names")
    args = parser.parse_args()
    warm_up()
    figures: dict[str, Any] = {"hunt_seeds": 0, "hunt_events_s": 0}
    for mutant in MUTANTS:
        if mutant.name in args.only:
            find(mutant, args.limit)
    if args.seeds or not (args.mutants or args.only):
        figures |= hunt_all(args.seed, args.seeds or 300)
    if args.mutants:
        found = {mutant.name: find(mutant, args.limit) for mutant in MUTANTS}
        figures["mutants"] = len(found)
        figures["mutants_found"] = sum(number is not None for number in found.values())
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
