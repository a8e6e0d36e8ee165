"""Places in the settings of a run, in words that hold from any working directory."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.config import RunConfig


def plain_path(place: str | Path) -> str:
    """Absolute, in the one form that workers take: to POSIX '//a' and '/a' are two."""
    return "/" + os.path.abspath(place).lstrip("/")


def with_plain_logs(config: RunConfig) -> RunConfig:
    places: dict[str, Any] = {
        name: plain_path(place)
        for name in ("log_dir", "log_mirror")
        if (place := getattr(config.recovery, name))
    }
    return replace(config, recovery=replace(config.recovery, **places))


def from_anywhere(config: RunConfig) -> dict[str, Any]:
    """Settings for whoever resumes the run, perhaps from another directory."""
    values = config.to_dict()
    if config.schedule.file:
        values["schedule"]["file"] = os.path.abspath(config.schedule.file)
    return values
