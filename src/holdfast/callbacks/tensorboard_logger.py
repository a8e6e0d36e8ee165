"""Steps and validations for TensorBoard. Needs the package ``tensorboard``."""

from pathlib import Path
from typing import Any

from holdfast.callbacks.callback import Callback, RunSoFar
from holdfast.errors import ConfigError
from holdfast.observability.events import StepFinished, Validated


class TensorBoardLogger(Callback):
    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder``: None: ``tensorboard`` in the run's directory."""
        self._open, self._folder = _writer_class(), folder
        self._writer: Any = None

    def on_step(self, event: StepFinished, run: RunSoFar) -> None:
        step = event.step + 1
        self._add(run, "train/loss", event.loss, step)
        self._add(run, "train/lr", event.lr, step)
        self._add(run, "train/tokens_per_s", event.tokens / max(event.took_s, 1e-9), step)
        if event.gradient_norm is not None:
            self._add(run, "train/gradient_norm", event.gradient_norm, step)

    def on_validation(self, event: Validated, run: RunSoFar) -> None:
        for name, value in {"loss": event.loss, **event.metrics}.items():
            self._add(run, f"validation/{name}", value, event.step)

    def on_end(self, run: RunSoFar) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, run: RunSoFar, name: str, value: float, step: int) -> None:
        if self._writer is None:
            folder = run.run_dir / "tensorboard" if self._folder is None else self._folder
            self._writer = self._open(str(folder))
        self._writer.add_scalar(name, value, step)


def _writer_class() -> Any:
    """Asked for at once: not first after an hour of training."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as why:
        raise ConfigError(
            "TensorBoardLogger needs the package tensorboard: pip install holdfast[tensorboard]"
        ) from why
    return SummaryWriter
