"""JSON that every reader accepts, written so that nobody ever sees half a file."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ONE_LINE = json.JSONEncoder(allow_nan=False)


def encode(value: Any, *, indent: int | None = None) -> str:
    """JSON text; floats keep every bit, NaN and infinity become "nan", "inf" and "-inf"."""
    try:
        if indent is None:
            return _ONE_LINE.encode(value)
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(spelled_out(value), allow_nan=False, indent=indent)


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """The file is the old one or the new one, also when the machine dies in between."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(encode(value, indent=indent) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def spelled_out(value: Any) -> Any:
    """With text for NaN and infinity, which are no JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: spelled_out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled_out(item) for item in value]
    return value
