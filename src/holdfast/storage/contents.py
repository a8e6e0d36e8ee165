"""What a checkpoint is made of, and how its manifest says so. Knows no disk.

What is read was written by another process, or by an older version: each field is checked.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast import names
from holdfast.checkpoint_address import is_address, parse_address
from holdfast.errors import CheckpointError, ProtocolError
from holdfast.validation import Validation

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Part:
    """The layers of one stage, as one worker wrote them."""

    directory: str  # below the checkpoint
    layers: tuple[int, ...]
    files: Mapping[str, str]  # name -> sha256
    state: Mapping[str, Any]  # what is not a tensor
    sizes: Mapping[str, int] = field(default_factory=dict)  # name -> bytes; empty: not known


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run is made of, so that a resume need not be told. Empty: an old checkpoint."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # by section, then by name
    job: str = ""  # path of the job file
    job_sha256: str = ""
    traits: Mapping[str, str] = field(default_factory=dict)  # of the job
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    validations: tuple[Validation, ...] = ()  # up to this checkpoint, the oldest first


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sealed checkpoint: parameters, optimizer and all else after ``step`` steps."""

    directory: str  # or its address
    step: int
    seed: int
    microbatches: int
    parts: tuple[Part, ...] = field(repr=False)
    origin: Origin = field(default=Origin(), repr=False)
    home: str = ""  # run directory that has led to an address; empty: none

    def part_of(self, layer: int) -> Part:
        for part in self.parts:
            if layer in part.layers:
                return part
        raise CheckpointError(
            f"checkpoint {self.directory} has no layer {layer}: it holds {self.num_layers} layers, "
            "the job has more; resume with the job that wrote it"
        )

    @property
    def address(self) -> str:
        """Of the run's checkpoints; empty: they are in its directory."""
        return parse_address(self.directory).address if is_address(self.directory) else ""

    @property
    def run_dir(self) -> Path | None:
        """None: not known."""
        if self.address:
            return Path(os.path.abspath(self.home)) if self.home else None
        return Path(os.path.abspath(self.directory)).parent.parent

    def is_in(self, run_dir: Path) -> bool:
        return self.run_dir is not None and self.run_dir.resolve() == run_dir.resolve()

    def from_run(self, home: str) -> "Checkpoint":
        return replace(self, home=home)

    @property
    def num_layers(self) -> int:
        return sum(len(part.layers) for part in self.parts)


def to_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """As the manifest has it; its own directory is no part of it."""
    origin = checkpoint.origin
    return {
        "format": FORMAT,
        "step": checkpoint.step,
        "seed": checkpoint.seed,
        "microbatches": checkpoint.microbatches,
        "parts": [asdict(part) for part in checkpoint.parts],
        "settings": origin.settings,
        "job": origin.job,
        "job_sha256": origin.job_sha256,
        "traits": origin.traits,
        "fingerprint": origin.fingerprint,
        "validations": [one._asdict() for one in origin.validations],
    }


def from_values(directory: str, values: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        directory,
        names.check_number(values["step"], "step", 0, names.MOST_STEP),
        values["seed"],
        values["microbatches"],
        tuple(_part(part) for part in values["parts"]),
        _origin(values),
    )


def _origin(values: Mapping[str, Any]) -> Origin:
    """Whatever an older version has not written is empty."""
    settings = _dict_of(values, "settings", dict, "a section of settings")
    job, job_sha256 = values.get("job", ""), values.get("job_sha256", "")
    if not isinstance(job, str) or "\0" in job:
        raise ProtocolError(f"job={job!r}: expected the path of a job file")
    if job_sha256 != "":
        names.SHA256.check(job_sha256, "job_sha256")
    traits = _dict_of(values, "traits", str, "text")
    fingerprint = _dict_of(values, "fingerprint", str, "text")
    validations = tuple(map(_validation, values.get("validations", ())))
    return Origin(settings, job, job_sha256, traits, fingerprint, validations)


def _validation(values: Mapping[str, Any]) -> Validation:
    step = names.check_number(values["step"], "step of a validation", 0, names.MOST_STEP)
    metrics = _dict_of(values, "metrics", float, "a number")
    if not isinstance(values["loss"], float):
        raise ProtocolError(f"loss={values['loss']!r} of a validation: expected a number")
    return Validation(step, values["loss"], metrics)


def _dict_of(values: Mapping[str, Any], name: str, kind: type, what: str) -> dict[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise ProtocolError(f"{name}={found!r}: expected names and values")
    for key, value in found.items():
        if not isinstance(value, kind):
            raise ProtocolError(f"{name}.{key}={value!r}: expected {what}")
    return found


def _part(values: Mapping[str, Any]) -> Part:
    directory = names.PART.check(values["directory"], "the directory of a part")
    for name, digest in values["files"].items():
        names.PART_FILE.check(name, f"a file of {directory}")
        names.SHA256.check(digest, f"the SHA-256 of {directory}/{name}")
    sizes = values.get("sizes", {})
    return Part(directory, tuple(values["layers"]), values["files"], values["state"], sizes)
