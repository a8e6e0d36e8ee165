"""Which checkpoint of a run is that of its best validation: a small file in the run directory."""

import json
from contextlib import suppress
from pathlib import Path

from holdfast import names
from holdfast.observability.jsonfile import write_json
from holdfast.storage.manifest import MANIFEST
from holdfast.storage.run_paths import checkpoint_place

BEST_FILE = "best.json"


def write_best(run_dir: Path, address: str, step: int, judged_by: str, value: float) -> None:
    """OSError: it cannot be written, or there is no such checkpoint."""
    place = checkpoint_place(run_dir, address, step)
    if not address:
        (Path(place) / MANIFEST).stat()
        place = str(Path(place).relative_to(run_dir))
    values = {"step": step, "checkpoint": place, "judged_by": judged_by, "value": value}
    write_json(run_dir / BEST_FILE, values, indent=1)


def best_step(run_dir: Path) -> int | None:
    """None: none is known."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        step = json.loads((run_dir / BEST_FILE).read_text())["step"]
        return step if type(step) is int and 0 <= step <= names.MOST_STEP else None
    return None


def forget_best_after(run_dir: Path, step: int) -> None:
    """The run begins, or goes on, with ``step``: what came later is not of this history."""
    found = best_step(run_dir)
    if found is not None and found > step:
        (run_dir / BEST_FILE).unlink(missing_ok=True)
