"""What makes a directory a checkpoint: its manifest. No torch, no tensors.

A checkpoint is ``RUN_DIR/checkpoints/step-00000020/``: one folder of safetensors a stage and a
``manifest.json`` with layers, files and their SHA-256. It appears by one rename, or not at all.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError

FORMAT = 1
_FOLDER = "checkpoints"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Part:
    """The layers of one stage, as one worker wrote them."""

    directory: str  # below the checkpoint
    layers: tuple[int, ...]
    files: Mapping[str, str]  # name -> sha256
    state: Mapping[str, Any]  # what is not a tensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sealed checkpoint: parameters, optimizer and all else after ``step`` steps."""

    directory: str
    step: int
    seed: int
    microbatches: int
    parts: tuple[Part, ...]

    def part_of(self, layer: int) -> Part:
        for part in self.parts:
            if layer in part.layers:
                return part
        raise CheckpointError(
            f"checkpoint {self.directory} has no layer {layer}: it holds {self.num_layers} layers, "
            "the job has more; resume with the job that wrote it"
        )

    @property
    def run_dir(self) -> Path:
        return Path(os.path.abspath(self.directory)).parent.parent

    @property
    def num_layers(self) -> int:
        return sum(len(part.layers) for part in self.parts)


def partial_directory(run_dir: str | Path, step: int) -> Path:
    return Path(run_dir) / _FOLDER / f"step-{step:08d}.partial"


def seal(
    run_dir: str | Path, step: int, parts: Sequence[Part], *, seed: int, microbatches: int
) -> Path:
    """Turn the parts on disk, in the order of the stages, into a checkpoint, by one rename."""
    partial = partial_directory(run_dir, step)
    named = _named_by_stage(partial, parts)
    write_manifest(Checkpoint(str(partial), step, seed, microbatches, tuple(named)))
    final = partial.with_suffix("")
    replaced = final.with_suffix(".replaced")
    if final.exists():  # a run resumed from an earlier step comes by here again
        final.rename(replaced)
    partial.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def write_manifest(checkpoint: Checkpoint) -> None:
    """Into its directory, where all its parts are already."""
    values = {
        "format": FORMAT,
        "step": checkpoint.step,
        "seed": checkpoint.seed,
        "microbatches": checkpoint.microbatches,
        "parts": [asdict(part) for part in checkpoint.parts],
    }
    text = json.dumps({**values, "sha256": _digest(values)}, indent=1)
    with open(Path(checkpoint.directory) / _MANIFEST, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _named_by_stage(partial: Path, parts: Sequence[Part]) -> list[Part]:
    """Each part in its folder, and no folder of a writer that was given up."""
    named = [replace(part, directory=f"stage-{stage}") for stage, part in enumerate(parts)]
    for part, new in zip(parts, named, strict=True):
        if part.directory != new.directory:
            (partial / part.directory).rename(partial / new.directory)
    wanted = {part.directory for part in named}
    for folder in [path for path in partial.iterdir() if path.is_dir()]:
        if folder.name not in wanted:
            shutil.rmtree(folder, ignore_errors=True)
    return named


def clear_abandoned(run_dir: str | Path, step: int) -> None:
    """Remove parts of checkpoints before ``step`` that will never be whole: a writer died."""
    for partial in (Path(run_dir) / _FOLDER).glob("step-*.partial"):
        if partial < partial_directory(run_dir, step):
            shutil.rmtree(partial, ignore_errors=True)


def clear_leftovers(run_dir: str | Path) -> None:
    """Remove what a run that was killed while writing left behind."""
    for replaced in (Path(run_dir) / _FOLDER).glob("step-*.replaced"):
        if not replaced.with_suffix("").exists():  # killed between the two renames of seal()
            replaced.rename(replaced.with_suffix(""))
    for pattern in ("step-*.partial", "step-*.replaced"):
        for leftover in (Path(run_dir) / _FOLDER).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def set_aside_after(run_dir: str | Path, step: int) -> None:
    """Later checkpoints of a history that is being rewritten: kept, but no longer found."""
    for path in _sealed(Path(run_dir)):
        if int(path.name.removeprefix("step-")) > step:
            aside = path.with_suffix(".abandoned")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def trim(run_dir: str | Path, keep: int) -> None:
    """Leave the newest ``keep`` checkpoints."""
    for old in _sealed(Path(run_dir))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def find(place: str | Path) -> Checkpoint:
    """The checkpoint at ``place``: a checkpoint's directory, or a run's (then its newest)."""
    path = Path(place)
    if not path.is_dir():
        raise CheckpointError(f"--resume {place}: no such directory; give a run directory")
    if (path / _MANIFEST).exists():
        return load_manifest(path)
    sealed = _sealed(path)
    if not sealed:
        raise CheckpointError(
            f"--resume {place}: no checkpoint below it; expected {_FOLDER}/step-*/{_MANIFEST} there"
        )
    return load_manifest(sealed[-1])


def has_checkpoint(run_dir: Path) -> bool:
    return bool(_sealed(run_dir))


def load_manifest(path: Path) -> Checkpoint:
    try:
        values = json.loads((path / _MANIFEST).read_text())
        stated = values.pop("sha256")
        if stated != _digest(values):
            raise CheckpointError(_refusal(path, "its manifest was changed or cut off"))
        if values["format"] != FORMAT:
            raise CheckpointError(_refusal(path, f"format {values['format']}, expected {FORMAT}"))
        parts = tuple(
            Part(p["directory"], tuple(p["layers"]), p["files"], p["state"])
            for p in values["parts"]
        )
        return Checkpoint(str(path), values["step"], values["seed"], values["microbatches"], parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise CheckpointError(_refusal(path, f"its manifest cannot be read ({why})")) from why


def verify(checkpoint: Checkpoint, part: Part) -> Path:
    """Check every file of a part against its SHA-256; returns the part's directory."""
    folder = Path(checkpoint.directory) / part.directory
    for name, expected in part.files.items():
        try:
            found = file_digest(folder / name)
        except OSError as why:
            reason = f"{part.directory}/{name} cannot be read ({why.strerror})"
            raise CheckpointError(_refusal(Path(checkpoint.directory), reason)) from why
        if found != expected:
            reason = f"{part.directory}/{name} was changed since it was written (SHA-256 differs)"
            raise CheckpointError(_refusal(Path(checkpoint.directory), reason))
    return folder


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refusal(path: Path, reason: str) -> str:
    older = [p for p in _sealed(path.parent.parent) if p < path]
    cure = f"resume an older one: --resume {older[-1]}" if older else "start the run anew"
    return f"checkpoint {path}: {reason}; {cure}"


def _sealed(run_dir: Path) -> list[Path]:
    return sorted(
        path.parent
        for path in (run_dir / _FOLDER).glob(f"step-*/{_MANIFEST}")
        if not path.parent.suffix  # not .partial, .replaced or .abandoned
    )


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
