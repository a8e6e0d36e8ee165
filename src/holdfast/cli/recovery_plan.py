"""``holdfast recovery-plan``: which boundaries to log for a budget, and how soon a lost stage is
back.

Numbers in, a table out: no job is loaded and nothing is run.
"""

import argparse
import json
import re
import sys
from math import inf
from typing import Any

from holdfast.cli import help_text
from holdfast.cli.report import recovery_plan
from holdfast.cli.report.recovery_plan import RecoveryComparison
from holdfast.config import parse_size
from holdfast.errors import ConfigError
from holdfast.planner.logs.groups import best_groups, described, greedy_groups
from holdfast.planner.logs.replay_time import ReplayCosts, swift_replay_s, training_step_s

_DESCRIPTION = """\
Choose the boundaries between stages whose tensors are logged, within a budget of storage, so that
a stage that nobody holds any more is back soonest on average. Stages between two logged boundaries
are a group: when one of them is lost, all of them are replayed."""
_EXAMPLES = (
    "holdfast recovery-plan --stages 16 --microbatches 256 --budget 900GB --interval 100 \\",
    "    --activation 839MB --forward 3ms --backward 6ms --state 1GB --bandwidth 10GB",
)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(us|ms|s|m|h|)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_MOST_STAGES, _MOST_NUMBER, _MOST_S, _MOST_WORD = 512, 1_000_000_000, 1e9, 24
_MOST_BYTES = 10**18
_CURVE = (100, 75, 50, 25, 10)  # per cent of what all boundaries take

_NUMBER: dict[str, Any] = {"type": int}
_NEEDED: dict[str, Any] = {"required": True}
_TIME: dict[str, Any] = {"metavar": "TIME"}
_SIZE: dict[str, Any] = {"metavar": "SIZE"}
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "the training": {
        "--stages": _NUMBER | _NEEDED | {"metavar": "S", "help": "of the model"},
        "--microbatches": _NUMBER
        | _NEEDED
        | {"metavar": "M", "help": "of one step, all pipelines"},
        "--forward": _NEEDED
        | _TIME
        | {"help": "of a micro-batch at a stage, e.g. 20ms; one for all, or S with commas between"},
        "--backward": _NEEDED | _TIME | {"help": "the whole backward, likewise"},
        "--state": _SIZE | {"help": "of a stage in a checkpoint; one or S (default: nothing)"},
        "--step": _TIME | {"help": "of training (default: one pipeline's, from the times above)"},
    },
    "the log": {
        "--budget": _SIZE | {"help": "for all logs together (default: any size)"},
        "--interval": _NUMBER
        | {"default": 100, "metavar": "STEPS", "help": "between checkpoints (100)"},
        "--activation": _NEEDED
        | _SIZE
        | {"help": "over a boundary in a step, the same again as gradients; one for all, or S-1"},
        "--bandwidth": _SIZE
        | {"default": "1GB", "help": "a second, at which the helpers together read the log (1GB)"},
    },
    "the recovery": {
        "--helpers": _NUMBER
        | {
            "metavar": "D",
            "help": "workers that replay together; 0: the replacement alone (default: S-1)",
        },
        "--lost": _NUMBER
        | {"metavar": "STEPS", "help": "since the checkpoint (default: half --interval)"},
        "--fixed": _TIME | {"default": "1s", "help": "to notice, stop, plan and build (1s)"},
        "--restart": _TIME | {"default": "60s", "help": "of everyone, without a log (60s)"},
        "--disk": _SIZE | {"help": "a second, of checkpoints (default: as --bandwidth)"},
        "--gradients": _SIZE | {"help": "of a stage's weights, summed by the helpers; one or S"},
        "--network": _SIZE | {"help": "a second, between helpers"},
    },
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "recovery-plan",
        help="choose which boundaries between stages to log for a budget, and compare",
        description=_DESCRIPTION,
        **help_text.parts(_EXAMPLES),
    )
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, words in options.items():
            group.add_argument(name, **words)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    costs = _costs_of(args)
    budget_bytes = None if args.budget is None else _size("--budget", args.budget)
    outcome = _plan(costs, budget_bytes)
    if args.json:
        sys.stdout.write(json.dumps(recovery_plan.as_json(outcome), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(recovery_plan.report(outcome)) + "\n")
    return 0


def _costs_of(args: argparse.Namespace) -> ReplayCosts:
    stages = _whole("--stages", args.stages, 2, _MOST_STAGES)
    interval = _whole("--interval", args.interval, 1, _MOST_NUMBER)
    lost = interval / 2 if args.lost is None else _whole("--lost", args.lost, 0, interval)
    helpers = stages - 1 if args.helpers is None else args.helpers
    activation = tuple(_sizes("--activation", args.activation, stages - 1, "boundary"))
    bandwidth = _size("--bandwidth", args.bandwidth)
    if (args.gradients is None) != (args.network is None):
        raise ConfigError(
            "--gradients and --network say together how long the helpers take to sum their "
            "gradients: expected both or neither"
        )
    return ReplayCosts(
        num_microbatches=_whole("--microbatches", args.microbatches, 1, _MOST_NUMBER),
        forward_s=tuple(_times_s("--forward", args.forward, stages)),
        backward_s=tuple(_times_s("--backward", args.backward, stages)),
        state_bytes=tuple(_sizes("--state", args.state, stages, "stage")),
        activation_bytes=activation,
        gradient_bytes=activation,
        reduced_bytes=tuple(_sizes("--gradients", args.gradients, stages, "stage")),
        network_bytes_per_s=_size_or("--network", args.network, inf),
        num_helpers=max(1, _whole("--helpers", helpers, 0, _MOST_NUMBER)),
        interval_steps=interval,
        lost_steps=lost,
        log_bytes_per_s=bandwidth,
        disk_bytes_per_s=_size_or("--disk", args.disk, bandwidth),
        fixed_s=_time_s("--fixed", args.fixed),
        restart_s=_time_s("--restart", args.restart),
        step_s=0.0 if args.step is None else _times_s("--step", args.step, 1)[0],
    )


def _whole(option: str, number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ConfigError(f"{option} {number}: expected {least} to {most:,}")
    return number


def _size(option: str, text: str) -> int:
    word = text.strip().removesuffix("/s")
    num_bytes = parse_size(option, word) if len(word) <= _MOST_WORD else _MOST_BYTES + 1
    if num_bytes > _MOST_BYTES:
        raise ConfigError(f"{option} {text[:40]}: expected at most {_MOST_BYTES // 10**12:,}TB")
    return num_bytes


def _size_or(option: str, text: str | None, otherwise: float) -> float:
    return otherwise if text is None else _size(option, text)


def _time_s(option: str, text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNIT_S[found[2]] if found else _MOST_S + 1
    if seconds > _MOST_S:
        raise ConfigError(
            f"{option} {text[:40]}: expected a time up to {_MOST_S:g} s, e.g. 20ms, 1.5s or 2m"
        )
    return seconds


def _times_s(option: str, text: str, number: int) -> list[float]:
    seconds = [_time_s(option, word) for word in _words(option, text, number, "stage")]
    if option != "--backward" and not min(seconds) > 0:
        raise ConfigError(f"{option} {text[:40]}: expected more than no time")
    return seconds


def _sizes(option: str, text: str | None, number: int, thing: str) -> list[int]:
    if text is None:
        return []
    return [_size(option, word) for word in _words(option, text, number, thing)]


def _words(option: str, text: str, number: int, thing: str) -> list[str]:
    """One for all, or one for each."""
    words = text.split(",")
    if len(words) not in (1, number):
        raise ConfigError(
            f"{option} has {len(words)} values: expected 1 for every {thing}, or {number}, "
            f"one a {thing}"
        )
    return words if len(words) == number else words * number


def _plan(costs: ReplayCosts, budget_bytes: int | None) -> RecoveryComparison:
    every = range(costs.num_stages - 1)
    whole_bytes = sum(costs.boundary_bytes)
    budgets = [(share, whole_bytes * share // 100) for share in _CURVE]
    return RecoveryComparison(
        costs=costs,
        budget_bytes=budget_bytes,
        plans={
            "best": best_groups(costs, budget_bytes),
            "greedy": greedy_groups(costs, budget_bytes),
            "everything": described(costs, every, "every boundary is logged, whatever the budget"),
            "nothing": described(costs, (), "no boundary is logged: a global restart"),
        },
        curve=[(p, b, best_groups(costs, b), greedy_groups(costs, b)) for p, b in budgets],
        swift_model_s=swift_replay_s(
            lost_steps=costs.lost_steps,
            step_s=training_step_s(costs),
            num_microbatches=costs.num_microbatches,
            num_helpers=costs.num_helpers,
            num_replayed=1,
            num_stages=costs.num_stages,
        ),
    )
