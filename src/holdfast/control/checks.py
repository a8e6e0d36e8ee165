"""What must fit before a run may start: the checkpoint to the job, the workers to each other."""

from collections.abc import Mapping

from holdfast.errors import CheckpointError, ConfigError
from holdfast.recovery.manifest import Checkpoint


def check_fits(checkpoint: Checkpoint, num_layers: int) -> None:
    if checkpoint.num_layers != num_layers:
        raise CheckpointError(
            f"checkpoint {checkpoint.directory} holds {checkpoint.num_layers} layers, the job has "
            f"{num_layers}; resume with the job that wrote it"
        )


def check_alike(fingerprints: Mapping[str, Mapping[str, str]], *, allow_mixed: bool) -> None:
    """Bits depend on threads, instruction set and libraries: refuse to mix them unaware."""
    first, *others = fingerprints
    for other in others:
        one, two = fingerprints[first], fingerprints[other]
        for key in sorted(one.keys() | two.keys()):
            if one.get(key) != two.get(key) and not allow_mixed:
                raise ConfigError(
                    f"workers {first} and {other} differ in {key}: {one.get(key)} and "
                    f"{two.get(key)}; results would not be exact. Make them alike, or accept it "
                    "with --set workers.allow_mixed=true"
                )
