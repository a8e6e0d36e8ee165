"""Checkpoints in the run directory: parts are written in place, and sealed by a rename."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.auth.secret import last_generation
from holdfast.errors import CheckpointError
from holdfast.storage import manifest
from holdfast.storage.contents import Checkpoint, Origin, Part


class LocalStore:
    seals_at_once = True

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._launch: int | None = None  # of the run in this directory; None: it is not known

    def staging(self, step: int, name: str) -> Path:
        return manifest.partial_directory(self.run_dir, step) / name

    def put_part(self, step: int, name: str, digests: Mapping[str, str]) -> None:
        """It is where it belongs."""

    def check(self, resume: Checkpoint | None) -> None:
        """The run directory is looked at by whoever makes it."""

    def open(self, resume: Checkpoint | None) -> None:
        self.take_over()
        manifest.clear_leftovers(self.run_dir)
        if resume is not None and resume.is_in(self.run_dir):
            manifest.set_aside_after(self.run_dir, resume.step)

    def take_over(self) -> None:
        """What is there, whole or not, belongs to the run."""
        self._launch = last_generation(self.run_dir)

    def seal(
        self,
        step: int,
        parts: Sequence[Part],
        *,
        seed: int,
        microbatches: int,
        origin: Origin | None = None,
    ) -> str:
        self._check_newest()
        place = manifest.seal(
            self.run_dir,
            step,
            parts,
            seed=seed,
            microbatches=microbatches,
            origin=origin,
            launch=self._launch,
        )
        return str(place)

    def _check_newest(self) -> None:
        newest = last_generation(self.run_dir)
        if self._launch is not None and newest != self._launch:
            raise CheckpointError(
                f"{self.run_dir}: launch {newest} of the run has taken over; this one, "
                f"{self._launch}, saves nothing more"
            )

    def tidy(self, keep: int, step: int, best: int | None = None) -> None:
        manifest.trim(self.run_dir, keep, best)
        manifest.clear_abandoned(self.run_dir, step)
