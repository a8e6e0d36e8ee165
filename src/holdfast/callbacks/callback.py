"""What is called, and what it is told."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.config import RunConfig
from holdfast.errors import CheckpointError
from holdfast.observability.events import (
    CheckpointSaved,
    Event,
    Recovered,
    StepFinished,
    Validated,
    WorkerLost,
)


class RunSoFar:
    """What a callback may ask. ``weights_at`` reads them from a checkpoint's place."""

    def __init__(
        self, run_dir: Path, config: RunConfig, weights_at: Callable[[str], Mapping[str, Any]]
    ) -> None:
        self.run_dir, self.config = run_dir, config
        self._weights_at = weights_at
        self.last_step: StepFinished | None = None
        self.last_validation: Validated | None = None
        self.last_checkpoint: CheckpointSaved | None = None

    @property
    def steps(self) -> int:
        """That are done; those before a resume count."""
        return 0 if self.last_step is None else self.last_step.step + 1

    def weights(self) -> dict[str, Any]:
        """The whole state dict of the newest checkpoint, by the model's own names: read from
        there, while training goes on."""
        if self.last_checkpoint is None:
            raise CheckpointError(
                "the weights are those of the newest checkpoint, and there is none yet: ask in "
                "on_checkpoint, and set checkpoint.every_steps"
            )
        return dict(self._weights_at(self.last_checkpoint.path))

    def note(self, event: Event) -> None:
        match event:
            case StepFinished():
                self.last_step = event
            case Validated():
                self.last_validation = event
            case CheckpointSaved():
                self.last_checkpoint = event


class Callback:
    """Derive from it, and override what you need. All is called in one thread, in the order in
    which it happened; training does not wait."""

    def on_event(self, event: Event, run: RunSoFar) -> None:
        """Every event of :mod:`holdfast.events`, also those that have a method of their own."""

    def on_step(self, event: StepFinished, run: RunSoFar) -> None:
        """``event.step`` counts from 0. After going back to a checkpoint, steps come again."""

    def on_validation(self, event: Validated, run: RunSoFar) -> None: ...

    def on_checkpoint(self, event: CheckpointSaved, run: RunSoFar) -> None:
        """Here :meth:`RunSoFar.weights` are those of ``event.step`` steps: a checkpoint that no
        callback has heard of stays, whatever ``checkpoint.keep`` is."""

    def on_worker_lost(self, event: WorkerLost, run: RunSoFar) -> None: ...

    def on_recovered(self, event: Recovered, run: RunSoFar) -> None: ...

    def on_end(self, run: RunSoFar) -> None:
        """Once, however the run has ended."""
