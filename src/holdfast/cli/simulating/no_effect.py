"""Words that would change nothing are refused, each with what it needs; then what is usual is set.

A flag that was not given is None until then.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.baselines.policies.catalogue import parse_constants
from holdfast.cli.simulating.asked import asked_policies
from holdfast.errors import ConfigError

USUAL: Mapping[str, Any] = {
    "failures": "poisson",
    "repair": "20m",
    "notice": "0",
    "rack": 8,
    "workers_a_machine": 1,
    "boot": "60s",
    "seed": 0,
    "price": 2.0,
    "jobs": 1,
}
_HUNT = ("hunt", "seed", "jobs")
_OPTIMISED = ("logs", "save_overhead")  # constants of Holdfast that --optimise sets itself


class _Needs(NamedTuple):
    names: tuple[str, ...]
    met: Callable[[argparse.Namespace], bool]
    words: str  # what to do


def _has(*names: str) -> Callable[[argparse.Namespace], bool]:
    return lambda args: any(_given(args, name) for name in names)


def _has_none(*names: str) -> Callable[[argparse.Namespace], bool]:
    return lambda args: not _has(*names)(args)


def _racks_matter(args: argparse.Namespace) -> bool:
    return args.maintenance is not None or (args.mtbf is not None and args.failures == "rack")


_HARDWARE = ("flops", "utilisation", "gpu_memory", "link")
_NEEDS = (
    _Needs(("jobs",), _has("hunt"), "expected it with --hunt"),
    _Needs(
        ("failures", "repair", "notice", "maintenance", "rack"),
        _has_none("trace"),
        "expected it without --trace, which says itself what fails and comes back",
    ),
    _Needs(("failures", "repair", "notice"), _has("mtbf"), "expected --mtbf with it"),
    _Needs(("rack",), _racks_matter, "expected --maintenance, or --mtbf with --failures rack"),
    _Needs(
        ("boot",),
        _has("trace", "mtbf", "maintenance"),
        "expected --trace, --mtbf or --maintenance with it: otherwise no machine comes",
    ),
    _Needs(
        ("seed",),
        _has("trace", "mtbf", "slow", "hunt"),
        "expected --mtbf, --slow or --hunt with it",
    ),
    _Needs(_HARDWARE, _has_none("from_run", "costs"), "expected it with --model"),
    _Needs(
        ("microbatches",), _has_none("from_run"), "expected it without --from: the run's are taken"
    ),
    _Needs(
        ("policies", "picture", "html"),
        _has_none("optimise"),
        "expected it without --optimise, which looks at Holdfast alone and prints a table or JSON",
    ),
)


def _given(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, name) not in (None, False, [])


def _flag(name: str) -> str:
    return "--from" if name == "from_run" else f"--{name.replace('_', '-')}"


def settled(args: argparse.Namespace) -> argparse.Namespace:
    """The words as they are meant, with what is usual for those that were not given."""
    _require_one_kind(args)
    if args.world is None and args.hunt is None:
        for needs in _NEEDS:
            for name in needs.names:
                if _given(args, name) and not needs.met(args):
                    raise ConfigError(f"{_flag(name)} has no effect here: {needs.words}")
        _require_used_constants(args)
    usual = {name: value for name, value in USUAL.items() if getattr(args, name) is None}
    return argparse.Namespace(**{**vars(args), **usual})


def _require_one_kind(args: argparse.Namespace) -> None:
    """A hunt, a world of one, or intervals: each has its own flags."""
    for kind, own in (("world", ("world",)), ("hunt", _HUNT)):
        if getattr(args, kind) is None:
            continue
        for name in vars(args):
            if name not in (*own, "run") and _given(args, name):
                raise ConfigError(
                    f"{_flag(name)} has no effect with --{kind}: expected "
                    f"{', '.join(map(_flag, own))} alone"
                )


def _require_used_constants(args: argparse.Namespace) -> None:
    used = ["holdfast"] if args.optimise else asked_policies(args.policies)
    for policy, table in parse_constants(args.constant).items():
        if policy not in used:
            raise ConfigError(
                f"--constant {policy}.{min(table)} has no effect here: expected one of a policy "
                f"that is simulated: {', '.join(used)}"
            )
        for name in _OPTIMISED:
            if args.optimise and name in table:
                raise ConfigError(
                    f"--constant {policy}.{name} has no effect with --optimise, which tries several"
                )
