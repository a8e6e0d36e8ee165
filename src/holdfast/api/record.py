"""A run as it is on disk: finished, broken off, or still under way in any process."""

import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.api.job_source import JobLike, job_source
from holdfast.config import RunConfig, config_from, known_settings
from holdfast.errors import CheckpointError, ConfigError
from holdfast.job_reference import forget_here
from holdfast.observability.events import Event, RunStarted
from holdfast.observability.log import EVENTS_FILE, RunLog, is_written, read_events
from holdfast.observability.summary import SUMMARY_FILE, Summary, read_summary, summarize
from holdfast.storage.best import best_step
from holdfast.storage.contents import Checkpoint
from holdfast.storage.stores import all_checkpoints
from holdfast.validation import Validation

if TYPE_CHECKING:  # torch: only for those who ask for the model
    from torch import nn

    from holdfast.weights.exporting import Format


class RunRecord:
    """Made by :func:`open_run`. What is read once stays as it was; open it again to see more."""

    _job = ""  # a reference; empty: the one that its checkpoints name

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        if not (self.run_dir / EVENTS_FILE).is_file():
            raise ConfigError(f"{run_dir} holds no {EVENTS_FILE}: expected the directory of a run")

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All that are on disk, of every launch of the run, times of operations included."""
        return tuple(read_events(self.run_dir / EVENTS_FILE))

    @cached_property
    def log(self) -> RunLog:
        """The same without times of operations, which are read by step: quick, however long the
        run."""
        return RunLog.open(self.run_dir)

    @property
    def is_running(self) -> bool:
        """Some process is writing events."""
        return is_written(self.run_dir)

    @cached_property
    def summary(self) -> Summary:
        """Of the last launch; so far, if it has not ended."""
        path = self.run_dir / SUMMARY_FILE
        if path.exists() and not self.is_running:
            return read_summary(path)
        starts = [n for n, event in enumerate(self.events) if isinstance(event, RunStarted)]
        return summarize(self.events[starts[-1] if starts else 0 :], config=self._settings())

    @property
    def losses(self) -> tuple[float, ...]:
        """One a step, those of the last launch only."""
        return self.summary.losses

    @property
    def validation(self) -> tuple[Validation, ...]:
        """Of the last launch, in order: ``step``, ``loss`` and ``metrics`` of each."""
        return self.summary.validations

    @property
    def best(self) -> Checkpoint | None:
        """Of the best validation; None: ``validation.keep_best`` is not set, or it was before the
        run was resumed, in another directory."""
        step = best_step(self.run_dir)
        return next((one for one in self.checkpoints if one.step == step), None)

    @property
    def parameters_sha256(self) -> str | None:
        """Of the trained parameters; None: the run has not finished."""
        return self.summary.parameters_sha256

    @cached_property
    def config(self) -> RunConfig:
        settings = self.summary.config
        if not settings:
            raise ConfigError(
                f"{self.run_dir}: its settings are in its summary or in a checkpoint, and there is "
                "none yet"
            )
        return config_from(known_settings(settings))

    @cached_property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Those that are whole, the oldest first."""
        return tuple(all_checkpoints(self.run_dir))

    def best_model(self, job: JobLike | None = None) -> "nn.Module":
        """The job's layers with the parameters and buffers of the best validation."""
        if self.best is None:
            raise CheckpointError(
                f"{self.run_dir}: no best checkpoint was kept; set validation.keep_best"
            )
        return self._model(self.best, job)

    def model(self, job: JobLike | None = None) -> "nn.Module":
        """The job's layers with the parameters and buffers of the newest checkpoint.

        Calls the job's code in this process, that of the run unless ``job`` is given.
        """
        if not self.checkpoints:
            raise CheckpointError(f"{self.run_dir}: the run has written no checkpoint")
        return self._model(self.checkpoints[-1], job)

    def export(
        self,
        to: "Format" = "safetensors",
        out: str | Path | None = None,
        *,
        step: int | None = None,
        force: bool = False,
        ema: bool = False,
    ) -> Path:
        """The model in a format that others read: see :func:`holdfast.export`."""
        from holdfast.weights.exporting import export

        return export(self.run_dir, to, out, step=step, force=force, job=self._job, ema=ema)

    def _model(self, checkpoint: Checkpoint, job: JobLike | None) -> "nn.Module":
        from holdfast.api.model import load_model

        origin = checkpoint.origin
        if job is None and not origin.job:
            raise ConfigError(
                f"{checkpoint.directory} does not say which job it is of; give it: model(job)"
            )
        source = job_source(origin.job if job is None else job, in_threads=True)
        sha256 = origin.job_sha256 if job is None else ""
        return load_model(checkpoint, source.reference, sha256)

    def _settings(self) -> dict[str, object]:
        return dict(self.checkpoints[-1].origin.settings) if self.checkpoints else {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.run_dir)!r})"


class Result(RunRecord):
    """A run that this program has trained to its end."""

    def __init__(self, run_dir: Path, summary: Summary, job: str) -> None:
        super().__init__(run_dir)
        self.summary = summary
        self._job = job  # a reference: perhaps to a function of this process
        weakref.finalize(self, forget_here, job)

    @property
    def digest(self) -> str:
        """``parameters_sha256``, which a finished run has."""
        assert self.parameters_sha256 is not None
        return self.parameters_sha256

    def model(self, job: JobLike | None = None) -> "nn.Module":
        """The trained model: the job's layers, with the parameters and buffers of the last step.

        Tied parameters are tied. Calls the job's code in this process.
        """
        last = self.checkpoints[-1] if self.checkpoints else None
        steps = self.summary.first_step + self.summary.steps
        if last is None or last.step != steps:
            raise CheckpointError(
                f"{self.run_dir}: there is no checkpoint of step {steps}, the last one: "
                "checkpoint.at_end=false"
            )
        if job is not None:
            return self._model(last, job)
        from holdfast.api.model import load_model

        return load_model(last, self._job, last.origin.job_sha256)


def open_run(run_dir: str | Path) -> RunRecord:
    """A run that has ended, or that still trains: its events, summary, checkpoints, its model."""
    return RunRecord(run_dir)
