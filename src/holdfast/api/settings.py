"""From what a caller gives to one checked configuration, and to faults that can happen."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.api.resuming import remembered
from holdfast.config import (
    DEFAULT_MICROBATCHES,
    RunConfig,
    config_from,
    set_value,
)
from holdfast.errors import Argument, ConfigError
from holdfast.faults.chaos import chaos_faults, parse_chaos
from holdfast.faults.fault import Fault, FaultKind, check_faults, parse_fault
from holdfast.storage.manifest import Checkpoint

ConfigLike: TypeAlias = RunConfig | Mapping[str, Any] | str | Path | None
"""Settings: a :class:`Config`, a mapping (``{"workers.kind": "threads"}``, or by section), the
path of a TOML file, or None for all defaults."""

_SHORT = {  # argument -> setting
    "args": "job.args",
    "weights": "job.weights",
    "pipelines": "parallel.pipelines",
    "stages": "parallel.stages",
    "microbatches": "parallel.microbatches",
    "steps": "train.steps",
    "seed": "train.seed",
}
_TRANSFER_S = 0.01  # assumed for random slow links, if operations are not emulated


def make_config(
    config: ConfigLike = None,
    overrides: Mapping[str, Any] | None = None,
    resume: Checkpoint | None = None,
) -> RunConfig:
    """The run that is resumed, then ``config``, then single settings: the later wins.

    >>> make_config({"workers.kind": "threads"}, {"pipelines": 2}).parallel.microbatches
    8
    """
    values = _plain(config)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    if isinstance(config, RunConfig) and "pipelines" in given and "microbatches" not in given:
        parallel = config.parallel
        if parallel.microbatches == DEFAULT_MICROBATCHES * parallel.pipelines:
            values["parallel"]["microbatches"] = 0  # the default, whatever the pipelines are
    for name, value in given.items():
        set_value(values, _SHORT[name], value)
    return config_from(values if resume is None else remembered(resume, values))


def own_place(config: ConfigLike) -> RunConfig:
    """What of it is of this machine, for whoever takes over a run with settings of its own."""
    values = _plain(config)
    control = {k: v for k, v in values.get("control", {}).items() if k != "standbys"}
    return config_from({"network": values.get("network", {}), "control": control})


def asked_standbys(config: ConfigLike) -> tuple[str, ...]:
    """Addresses where others are to stand by, which ``own_place`` leaves out."""
    given = _plain(config).get("control", {}).get("standbys", "")
    return tuple(str(given).split(",")) if given else ()


def _plain(config: ConfigLike) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, RunConfig):
        return config.to_dict()
    if not isinstance(config, Mapping):
        return read_toml(config)
    values: dict[str, Any] = {}
    for key, value in config.items():
        if "." in key:
            set_value(values, key, value)
        elif isinstance(value, Mapping):
            values[key] = {**values.get(key, {}), **value}
        else:
            values[key] = value  # refused by name when it is read
    return values


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as why:
        raise ConfigError(Argument("config", path), f": {why}") from why


def armed_faults(
    faults: Sequence[str | Fault], chaos: str | None, config: RunConfig, first_step: int
) -> tuple[Fault, ...]:
    """Those that are given, in their order, then random ones."""
    parallel, steps = config.parallel, config.train.steps
    armed = tuple(parse_fault(one) if isinstance(one, str) else one for one in faults)
    if chaos is not None:
        armed += _random_faults(chaos, config, first_step)
    check_faults(armed, parallel.pipelines, parallel.stages, steps, first_step=first_step)
    for fault in armed:
        if fault.kind is FaultKind.CPU and config.workers.kind == "threads":
            raise ConfigError(
                Argument("faults", f"'{fault}'"),
                ": workers.kind=threads has all workers in one process, and only a whole process "
                "can be kept from the CPU; use slow, or workers.kind=processes",
            )
    return armed


def _random_faults(text: str, config: RunConfig, first_step: int) -> tuple[Fault, ...]:
    chaos, parallel = parse_chaos(text), config.parallel
    if parallel.pipelines == 1 and chaos.rate:
        raise ConfigError(
            Argument("chaos", repr(text)),
            ": with one pipeline each stage has only one worker, and none may be killed; give ",
            Argument("pipelines", 2),
            " or more, or no rate",
        )
    return chaos_faults(
        chaos,
        parallel.pipelines,
        parallel.stages,
        config.train.steps,
        operations=parallel.microbatches // parallel.pipelines,
        first_step=first_step,
        # As long as an operation: a slow link is one that is felt.
        transfer_s=config.device.durations_s().get("F", _TRANSFER_S),
    )
