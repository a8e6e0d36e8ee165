"""What a run asks of the place where its checkpoints are kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.storage.contents import Checkpoint, Origin, Part


class PartStore(Protocol):
    """For those who hold a stage."""

    def staging(self, step: int, name: str) -> Path:
        """A local folder, in which a part is written before it is put."""

    def put_part(self, step: int, name: str, digests: Mapping[str, str]) -> None:
        """Files of the staging folder; returns when they are safe. Can be called again."""


class Store(PartStore, Protocol):
    """For the one who seals, too."""

    run_dir: Path
    seals_at_once: bool  # quick enough for whoever has other things to do

    def check(self, resume: Checkpoint | None) -> None:
        """ConfigError: a run that goes on from ``resume`` cannot save here."""

    def take_over(self) -> None:
        """Go on for a coordinator that is gone: nothing is cleared."""
        ...

    def open(self, resume: Checkpoint | None) -> None:
        """From here on it is this run's; later checkpoints than ``resume`` are set aside."""

    def seal(
        self,
        step: int,
        parts: Sequence[Part],
        *,
        seed: int,
        microbatches: int,
        origin: Origin | None = None,
    ) -> str:
        """All parts were put: a checkpoint, or nothing. Can be called again after an error."""

    def tidy(self, keep: int, step: int, best: int | None = None) -> None:
        """Leave the newest ``keep`` and that of step ``best``, and no part that will never be
        whole, now that ``step`` is."""
