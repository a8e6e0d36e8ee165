"""What a live worker has of a step that is half done. Knows neither costs nor what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from holdfast.schedule.operation import Kind

Place = tuple[int, int]  # stage, micro-batch


class MicrobatchProgress(IntEnum):
    """How far a worker is with a micro-batch at a stage."""

    NONE = 0
    FORWARDED = 1  # has what its B will need
    GRADED = 2  # B is done; has what its W will need
    SUMMED = 3  # the weight gradient is in its accumulator


PROGRESS_AFTER = {
    Kind.F: MicrobatchProgress.FORWARDED,
    Kind.B: MicrobatchProgress.GRADED,
    Kind.W: MicrobatchProgress.SUMMED,
    Kind.BW: MicrobatchProgress.SUMMED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What one live worker has of one running step.

    F and B that were run again for others, without W, are no progress: of those only the
    tensors they made count. Otherwise a weight gradient could seem to be at two workers.
    """

    progress: Mapping[Place, MicrobatchProgress] = field(default_factory=dict)
    activations: frozenset[Place] = frozenset()
    """Kept outputs of the stage. An input that was received counts by ``progress`` only."""
    gradients: frozenset[Place] = frozenset()
    """Kept gradients for the stage's input, as What.GRADIENT."""
    stepped: frozenset[int] = frozenset()
    """Stages whose parameters here are already the next step's; the old ones are kept."""
