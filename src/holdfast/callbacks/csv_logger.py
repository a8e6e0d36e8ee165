"""Steps and validations as tables, for spreadsheets and pandas."""

import csv
from collections.abc import Mapping
from pathlib import Path

from holdfast.callbacks.callback import Callback, RunSoFar
from holdfast.observability.events import StepFinished, Validated

STEPS_FILE, VALIDATION_FILE = "steps.csv", "validation.csv"


class CsvLogger(Callback):
    """``steps.csv`` and ``validation.csv``, one row for each, on disk at once.

    A run that is resumed adds to them. Steps that are trained again after going back to a
    checkpoint have another row. Steps are counted from 1.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder``: None: the run's directory."""
        self._folder = folder

    def on_step(self, event: StepFinished, run: RunSoFar) -> None:
        row = {
            "step": event.step + 1,
            "loss": event.loss,
            "gradient_norm": event.gradient_norm,
            "lr": event.lr,
            "tokens": event.tokens,
            "took_s": event.took_s,
            "clipped": int(event.clipped),
            "skipped": int(event.skipped),
        }
        self._add(run, STEPS_FILE, row)

    def on_validation(self, event: Validated, run: RunSoFar) -> None:
        row = {"step": event.step, "loss": event.loss, **event.metrics}
        self._add(run, VALIDATION_FILE, {**row, "is_best": int(event.is_best)})

    def _add(self, run: RunSoFar, name: str, row: Mapping[str, object]) -> None:
        folder = run.run_dir if self._folder is None else Path(self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
